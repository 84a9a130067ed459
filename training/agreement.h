// Checks that all ranks of a run were started alike. Each reads its own command line, configuration and data; if these
// differed, the ranks would train a model that no configuration describes, or wait for each other forever.
#pragma once
#include <map>
#include <string>

#include "ranks/comm.h"
#include "training/data.h"

using Facts = std::map<std::string, std::string>;  // name -> value at this rank

// The program's version, the flags, and all settings except those that the configuration table leaves to each rank.
Facts settings_facts(const std::string& version, const Flags& flags, const Config& config);
// The content of the data files and, unless the run continues from a checkpoint, of the weights that `init` names,
// whatever their paths; and the token between documents.
Facts input_facts(const Config& config, const Data& data, int separator, bool continues);

// A user_error that lists the differences, on each rank whose facts differ from rank 0's. The other ranks wait until
// that rank's end ends the run.
void check_agreement(Comm& comm, const Facts& facts);
