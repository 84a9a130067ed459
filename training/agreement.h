// Whether the ranks of a run were all started to do the same. Each of them reads its own command line, configuration
// and data; where these differ the ranks would train a model that nobody described, or wait for each other forever.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ranks/comm.h"
#include "settings/command_line.h"
#include "settings/config.h"

using Facts = std::map<std::string, std::string>;  // what it is called -> its value at this rank

// The program, the flags, the settings but for those that the configuration table leaves to each rank, and instead of
// the names of files what is in them.
Facts facts_of(const std::string& version, const Flags& flags, const Config& config, const std::vector<DataFile>& train,
               const std::vector<DataFile>& val);

// The weights that a run begins from, where it does not go on from a checkpoint.
Facts init_facts(const Config& config);

// A user_error with a list at a rank whose facts are not rank 0's. The others wait for its word, which ends the run.
void check_agreement(Comm& comm, const Facts& facts);
