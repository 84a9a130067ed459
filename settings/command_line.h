// The command line: ./train CONFIG.json [flags].
#pragma once
#include <string>
#include <vector>

struct Flags {
  std::string config;
  std::string run;  // X where CONFIG is the folder runs/X or in it: what the run is called, whatever config.json says
  std::vector<std::string> sets;
  std::string resume, lengths, tasks, generate, generate_file, predict, token_losses, gpus = "1", dump_gradients,
                                                                                      encode;
  bool resuming = false, eval = false, passkey = false, diagnostics = false, generating = false, overwrite = false,
       dry_run = false, print_config = false, remeasure = false;
  std::string command;  // as typed
};

// Reads the command line; mistakes are a user_error. Prints and exits for --help and --version ("plusgpt VERSION").
Flags parse_flags(int argc, char** argv, const std::string& version);
