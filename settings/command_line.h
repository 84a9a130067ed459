// The command line: ./train CONFIG.json [flags].
#pragma once
#include <string>
#include <vector>

// The mode of the program: training, or the one that a flag asks for, which excludes all the others; but with --dry-run
// some are planned.
// clang-format off
enum class Mode {
  train, eval, passkey, tasks, diagnostics, generate, generate_file, predict, token_losses, dry_run, print_config,
  print_identity, dump_gradients, encode
};
// clang-format on
enum class HeadNeeded { any, tokens, outputs };

// A mode, how it is asked for, and what it needs.
struct ModeRow {
  Mode mode;
  const char* flag = "";           // "": training needs none
  const char* value = nullptr;     // the type of the text after the flag; nullptr: there is none
  const char* if_empty = nullptr;  // the error if that text is empty; nullptr: it may be
  const char* help = "";
  bool makes_steps = false;  // reads data.train, and needs gradients and moments
  bool whole_run = false;    // also evaluates and generates whenever the configuration asks for it
  bool losses = false;       // evaluates windows of data.val
  bool all_of_val = false;   // all of them, whatever eval.tokens says, until a signal ends it
  bool lengths = false;      // takes --lengths
  bool writes_run = false;   // writes lines to runs/NAME
  bool writes_file = false;  // writes the file after the flag
  bool to_stdout = false;    // writes its result to standard output
  bool plans = false;        // is only planned if --dry-run is given too
  HeadNeeded head = HeadNeeded::any;
};
const std::vector<ModeRow>& modes();  // in the order of Mode

struct Flags {
  const ModeRow* mode = &modes()[0];
  std::string value;  // after the mode's flag
  std::string config;
  std::string run;  // X where CONFIG is the folder runs/X or in it: what the run is called, whatever config.json says
  std::vector<std::string> sets;
  std::string resume, lengths, gpus = "1";
  bool resuming = false, overwrite = false, remeasure = false;
  bool dry = false;     // --dry-run, of training or of a mode that `plans`
  std::string command;  // as a shell reads it
  bool is(Mode wanted) const { return mode->mode == wanted; }
  bool generates() const { return is(Mode::generate) || is(Mode::generate_file); }
};

// Reads the command line; mistakes are a user_error. Prints and exits for --help and --version ("plusgpt VERSION").
Flags parse_flags(int argc, char** argv, const std::string& version);
