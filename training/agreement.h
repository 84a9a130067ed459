// Checks that all ranks of a run were started alike. Each reads its own command line, configuration and data; if these
// differed, the ranks would train a model that no configuration describes, or wait for each other forever.
#pragma once
#include <map>
#include <string>

#include "training/start.h"

using Facts = std::map<std::string, std::string>;  // name -> value at this rank

// The program's version, the flags, all settings except those that the configuration table leaves to each rank, and the
// content of the data files instead of their paths.
Facts facts_of(const std::string& version, const Flags& flags, const Config& config, const Data& data);

// The checksum of the weights that `init` names; empty without init. For a run that does not resume.
Facts init_facts(const Config& config);

// A user_error that lists the differences, on each rank whose facts differ from rank 0's. The other ranks wait until
// that rank's end ends the run.
void check_agreement(Comm& comm, const Facts& facts);
