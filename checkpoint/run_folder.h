// A run that the command line names by its folder, and the settings of a run.
#pragma once
#include "settings/command_line.h"
#include "settings/config.h"

// If CONFIG is the folder of a run, or one of its checkpoints: takes the run's config.json, with --resume from there,
// and the folder's name as flags.run. A user_error if it is another folder, is not there, or is not in ./runs although
// the program will write to the run.
void take_run_folder(Flags& flags);
// load_config() of the flags' file and --set; the run is called flags.run where that is given and no --set names it.
Config load_config(const Flags& flags);
