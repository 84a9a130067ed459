#include "settings/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "settings/table.h"

const std::vector<ModeRow>& modes() {
  static const char* const output = "needs the name of a file to write";
  // clang-format off
  static const std::vector<ModeRow> rows = {
      {.mode = Mode::train, .makes_steps = true, .whole_run = true, .writes_run = true},
      {.mode = Mode::eval, .flag = "--eval",
       .help = "evaluate and exit; weights from --resume, else init, else fresh",
       .losses = true, .lengths = true, .writes_run = true, .plans = true},
      {.mode = Mode::passkey, .flag = "--passkey",
       .help = "measure how far back a hidden key is found, and exit; weights as --eval",
       .lengths = true, .writes_run = true, .plans = true, .head = HeadNeeded::tokens},
      {.mode = Mode::tasks, .flag = "--tasks", .value = "NAME,...",
       .if_empty = "needs a list of benchmarks, as in hellaswag,piqa",
       .help = "run benchmarks, files of scripts/prepare_tasks.py in task.dir, and exit; weights as --eval",
       .writes_run = true, .plans = true, .head = HeadNeeded::tokens},
      {.mode = Mode::diagnostics, .flag = "--diagnostics",
       .help = "look into attention: sinks, entropy, gates, reach, and exit; weights as --eval",
       .lengths = true, .writes_run = true, .plans = true},
      {.mode = Mode::generate, .flag = "--generate", .value = "TEXT",
       .help = "continue TEXT and exit",
       .to_stdout = true, .head = HeadNeeded::tokens},
      {.mode = Mode::generate_file, .flag = "--generate-file", .value = "FILE", .if_empty = "needs a file of prompts",
       .help = "continue the \"prompt\" of every line of a file of JSON lines, as JSON lines, and exit",
       .to_stdout = true, .head = HeadNeeded::tokens},
      {.mode = Mode::predict, .flag = "--predict", .value = "FILE", .if_empty = output,
       .help = "write the outputs of model.head for all of data.val as .npy and exit; weights as --eval",
       .losses = true, .all_of_val = true, .writes_file = true, .head = HeadNeeded::outputs},
      {.mode = Mode::token_losses, .flag = "--per-token-losses", .value = "FILE", .if_empty = output,
       .help = "write the losses of all tokens of data.val at each length as .npy and exit; weights as --eval",
       .losses = true, .all_of_val = true, .lengths = true, .writes_file = true},
      {.mode = Mode::dry_run, .flag = "--dry-run",
       .help = "check everything, print the memory table, run one step (with --eval: none), write nothing",
       .makes_steps = true, .whole_run = true},
      {.mode = Mode::print_config, .flag = "--print-config",
       .help = "print every setting with its origin, and whether it may change at --resume, and exit",
       .whole_run = true, .to_stdout = true},
      {.mode = Mode::print_identity, .flag = "--print-identity",
       .help = "print the checksums of data, labels and init, and the tokenizer, as JSON, and exit",
       .makes_steps = true, .whole_run = true, .to_stdout = true},
      {.mode = Mode::dump_gradients, .flag = "--dump-gradients", .value = "FILE", .if_empty = output,
       .help = "write the gradients of the first step as safetensors and exit",
       .makes_steps = true, .writes_file = true},
      {.mode = Mode::encode, .flag = "--encode", .value = "DIR",
       .if_empty = "needs the folder of GPT-2's vocabulary",
       .help = "encode standard input as GPT-2 tokens (uint16) by the vocabulary in DIR; takes no CONFIG",
       .to_stdout = true}};
  // clang-format on
  return rows;
}

// Without the lists of the flags that exclude each other: an error names them.
struct HelpFormatter : CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
};

// The --set that a flag like --optimizer.lr=1e-3, --lr or --warmup-steps may mean, "" if none. Several keys: all of
// them.
static std::string set_for_flag(const std::string& flag) {
  size_t equals = std::min(flag.find('='), flag.size());
  std::string word = flag.substr(0, equals), value = equals < flag.size() ? flag.substr(equals) : "=VALUE", sets;
  word.erase(0, word.find_first_not_of('-'));
  std::replace(word.begin(), word.end(), '-', '_');
  Config defaults;
  for (const ConfigRow& row : config_rows(defaults))
    if (("." + std::string(row.key)).ends_with("." + word))
      append_item(sets, "--set " + shell_quoted(row.key + value), " or ");
  return sets;
}

// A user_error for the first argument that no option took; it names the likely mistake.
static void refuse_rest(const std::vector<std::string>& rest, const Flags& flags,
                        const std::vector<std::string>& names) {
  if (rest.empty()) return;
  const std::string& first = rest[0];
  auto is_length = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789,") == std::string::npos;
  };
  if (first.starts_with("-")) {
    std::string sets = set_for_flag(first);
    user_error("command line: %s is unknown%s", first.c_str(),
               sets.empty() ? did_you_mean(first, names).c_str() : ("; a setting is given as " + sets).c_str());
  }
  for (const std::string& set : flags.sets)
    if (set.find('=') == std::string::npos)
      user_error("command line: --set %s has no \"=\"; write --set %s=VALUE", set.c_str(), shell_quoted(set).c_str());
  if (!flags.lengths.empty() && (is_length(first) || is_length(flags.config)))
    user_error("command line: --lengths takes one list, with commas: --lengths %s,%s", flags.lengths.c_str(),
               (is_length(flags.config) ? flags.config : first).c_str());
  if (first.find('=') != std::string::npos)
    user_error("command line: %s: a setting needs --set: --set %s", first.c_str(), shell_quoted(first).c_str());
  user_error("command line: \"%s\" after \"%s\": one configuration at a time", first.c_str(), flags.config.c_str());
}

// Control characters in a name could fake lines of our output. Texts to generate from may have them.
static void refuse_control_characters(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    std::string before = argv[i - 1], here = argv[i], set = before == "--set" ? here : here.substr(here.find('=') + 1);
    bool sets = before == "--set" || here.starts_with("--set="), text = before == "--generate";
    text = text || here.starts_with("--generate=") ||
           (sets && (set.starts_with("generate.prompt=") || set.starts_with("generate.stop=")));
    if (!text && has_control_characters(here))
      user_error("command line: %s has control characters", shortened(json_quote(here)).c_str());
  }
}

// The arguments, with "--flag=" as "--flag" and an empty text. CLI11 would give such a flag the next argument as its
// value, and gives one without a value another flag: that is a user_error. valued: the flags that have a value.
static std::vector<const char*> with_empty_values(int argc, char** argv, const std::vector<std::string>& valued,
                                                  const std::vector<std::string>& names) {
  auto find = [](const std::vector<std::string>& list, const std::string& word) {
    auto found = std::find(list.begin(), list.end(), word);
    return found == list.end() ? nullptr : found->c_str();
  };
  std::vector<const char*> arguments;
  for (int i = 0; i < argc; i++) {
    std::string here = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
    const char* emptied = here.ends_with('=') ? find(valued, here.substr(0, here.size() - 1)) : nullptr;
    arguments.push_back(emptied ? emptied : argv[i]);
    if (emptied) arguments.push_back("");
    std::string flag = arguments.back();
    if (flag != "--resume" && find(valued, flag) && find(names, next.substr(0, next.find('='))))
      user_error("command line: %s needs a value, but is followed by %s; if that is the value, write %s=%s",
                 flag.c_str(), next.c_str(), flag.c_str(), next.c_str());
  }
  for (size_t i = 1; i < arguments.size(); i++)
    if (arguments[i - 1] == std::string("--resume") && !*arguments[i])
      user_error("command line: --resume: the name of its folder is empty; --resume alone takes the latest checkpoint");
  return arguments;
}

// CLI11 would take --overwrite=false as --overwrite.
static void refuse_values_of_switches(int argc, char** argv) {
  std::vector<std::string> switches = {"--overwrite", "--remeasure"};
  for (const ModeRow& mode : modes())
    if (!mode.value && mode.mode != Mode::train) switches.push_back(mode.flag);
  for (const std::string& flag : switches)
    for (int i = 1; i < argc; i++)
      if (std::string(argv[i]).starts_with(flag + "="))
        user_error("command line: %s: the flag takes no value; write %s alone", argv[i], flag.c_str());
}

// --help and --version are answered here, which ends the program.
static void parse(CLI::App& app, const std::vector<const char*>& arguments, const Flags& flags,
                  const std::vector<std::string>& names) try {
  app.parse(int(arguments.size()), arguments.data());
  refuse_rest(app.remaining(), flags, names);
} catch (const CLI::Success& information) {
  refuse_rest(app.remaining(), flags, names);
  int code = app.exit(information);
  if (!std::cout.flush()) failure("standard output: not everything could be written (is its disk full?)");
  std::exit(code);
} catch (const CLI::ParseError& error) {
  user_error("command line: %s; see ./train --help", error.what());
}

static void check_configuration_and_lengths(const Flags& flags) {
  if (flags.config.empty())
    user_error(
        "command line: no configuration given%s; try ./train configs/quickstart.json, or ./train --help",
        flags.resuming && !flags.resume.empty()
            ? format(" (%s was taken as --resume's folder: put the configuration first)", flags.resume.c_str()).c_str()
            : "");
  if (!flags.lengths.empty() && !flags.mode->lengths)
    user_error(
        "command line: --lengths requires --eval, --passkey, --diagnostics or --per-token-losses; see ./train --help");
}

Flags parse_flags(int argc, char** argv, const std::string& version) {
  refuse_control_characters(argc, argv);
  Flags flags;
  CLI::App app("plusgpt: pretrains GPT-2 with the attention that the configuration names.", "train");
  app.add_option("CONFIG", flags.config,
                 "configuration, a JSON file; or the folder of a run or of one of its steps: resumes it");
  // otherwise: the error if the text is empty.
  auto not_empty = [](const char* otherwise) {
    return CLI::Validator([otherwise](std::string& text) { return text.empty() ? otherwise : std::string(); }, "");
  };
  app.add_option("--set", flags.sets, "override one key: --set optimizer.lr=1e-3; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  auto* resume = app.add_option("--resume", flags.resume,
                                "continue from the latest checkpoint, or from DIR (a run or a step folder)")
                     ->expected(0, 1)
                     ->type_name("[latest|DIR]");
  app.add_option("--lengths", flags.lengths,
                 "lengths for --eval, --passkey, --diagnostics or --per-token-losses [eval.lengths]")
      ->type_name("1024,2048,...")
      ->check(not_empty("needs a list of lengths, as in 1024,2048"));
  app.add_option("--gpus", flags.gpus, "number of GPUs on this machine, or all [1]")->type_name("N|all");
  app.add_flag("--overwrite", flags.overwrite, "train into a run that has checkpoints, deleting them");
  app.add_flag("--remeasure", flags.remeasure,
               "time the algorithms for matrix products again, though earlier runs kept theirs (GPUs only)");
  std::vector<CLI::Option*> options;  // of the modes but training
  for (const ModeRow& mode : modes()) {
    if (mode.mode == Mode::train) continue;
    options.push_back(mode.value ? app.add_option(mode.flag, flags.value, mode.help)->type_name(mode.value)
                                 : app.add_flag(mode.flag, mode.help));
    if (mode.if_empty) options.back()->check(not_empty(mode.if_empty));
    for (size_t i = 0; i + 1 < options.size(); i++)
      if (mode.mode != Mode::dry_run || !modes()[i + 1].plans) options.back()->excludes(options[i]);
  }
  CLI::Option* encode = options[size_t(Mode::encode) - 1];
  app.set_version_flag("--version", "plusgpt " + version);
  for (CLI::Option* other : app.get_options())
    if (other != encode) encode->excludes(other);
  refuse_values_of_switches(argc, argv);
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(config_help);
  app.allow_extras();
  std::vector<std::string> names, valued;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
      if (option->get_items_expected_max() > 0) valued.push_back("--" + name);
    }
  parse(app, with_empty_values(argc, argv, valued, names), flags, names);
  for (size_t i = 0; i < options.size(); i++)
    if (options[i]->count() && !flags.mode->plans) flags.mode = &modes()[i + 1];
  flags.dry = options[size_t(Mode::dry_run) - 1]->count() > 0;
  if (flags.is(Mode::encode)) return flags;
  flags.resuming = resume->count() > 0;
  check_configuration_and_lengths(flags);
  if (flags.resuming && flags.resume.empty()) flags.resume = "latest";
  for (int i = 0; i < argc; i++) append_item(flags.command, shell_quoted(argv[i]), " ");
  return flags;
}
