// The command line: ./train CONFIG.json [flags].
#pragma once
#include <string>
#include <vector>

struct Flags {
  std::string config;
  std::vector<std::string> sets;
  std::string resume, lengths, generate, gpus = "1", dump_gradients;
  bool resuming = false, eval = false, generating = false, overwrite = false, dry_run = false, print_config = false,
       remeasure = false;
  std::string command;  // as typed
};

// What the command line asks for. Prints and exits for --help and --version ("plusgpt VERSION"); a user_error for what is
// wrong with it.
Flags parse_flags(int argc, char** argv, const std::string& version);
