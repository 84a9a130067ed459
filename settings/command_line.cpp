#include "settings/command_line.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "base/error.h"
#include "settings/config.h"

static CLI::Validator not_empty(const char* otherwise) {
  return CLI::Validator([otherwise](std::string& text) { return text.empty() ? otherwise : std::string(); }, "");
}

// Without the lists of the flags that exclude each other: an error names them.
struct HelpFormatter : CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_type_size() == 0 ? "" : " " + option->get_type_name();
  }
};

Flags parse_flags(int argc, char** argv, const std::string& version) {
  Flags flags;
  CLI::App app("plusgpt: pretrains GPT-2 with the attention that the configuration names.", "train");
  app.add_option("CONFIG", flags.config, "configuration, a JSON file");
  app.add_option("--set", flags.sets, "override one key: --set optimizer.lr=1e-3; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  auto* resume = app.add_option("--resume", flags.resume,
                                "continue from the latest checkpoint, or from DIR (a run or a step folder)")
                     ->expected(0, 1)
                     ->type_name("[latest|DIR]");
  auto* eval = app.add_flag("--eval", flags.eval, "evaluate and exit; weights from --resume, else init, else fresh");
  auto* passkey = app.add_flag("--passkey", flags.passkey,
                               "measure how far back a hidden key is found, and exit; weights as --eval");
  app.add_option("--lengths", flags.lengths, "lengths for --eval or --passkey [eval.lengths]")
      ->type_name("1024,2048,...")
      ->check(not_empty("needs a list of lengths, as in 1024,2048"));
  auto* generate = app.add_option("--generate", flags.generate, "continue TEXT and exit")->type_name("TEXT");
  app.add_option("--gpus", flags.gpus, "number of GPUs on this machine, or all [1]")->type_name("N|all");
  app.add_flag("--overwrite", flags.overwrite, "train into a run that has checkpoints, deleting them");
  auto* dry_run =
      app.add_flag("--dry-run", flags.dry_run, "check everything, print the memory table, run one step, write nothing");
  app.add_flag("--remeasure", flags.remeasure,
               "time the algorithms for matrix products again, though earlier runs kept theirs (GPUs only)");
  auto* print_config =
      app.add_flag("--print-config", flags.print_config, "print every setting with its origin and exit");
  auto* gradients = app.add_option("--dump-gradients", flags.dump_gradients,
                                   "write the gradients of the first step as safetensors and exit")
                        ->type_name("FILE")
                        ->check(not_empty("needs the name of a file to write"));
  CLI::Option* modes[] = {eval, passkey, generate, dry_run, print_config, gradients};
  for (CLI::Option** mode = modes; mode < std::end(modes); mode++)
    for (CLI::Option** other = modes; other < mode; other++) (*mode)->excludes(*other);
  auto* encode =
      app.add_option("--encode", flags.encode,
                     "GPT-2 tokens (uint16) of standard input, by the vocabulary in DIR, and exit; needs no CONFIG")
          ->type_name("DIR");
  app.set_version_flag("--version", "plusgpt " + version);
  for (CLI::Option* other : app.get_options())
    if (other != encode) encode->excludes(other);
  for (const char* flag : {"--eval", "--passkey", "--overwrite", "--dry-run", "--remeasure", "--print-config"})
    app.get_option(flag)->disable_flag_override();
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer([] { return "Configuration keys:\n\n" + config_help(); });
  app.allow_extras();
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& information) {  // --help, --version
    int code = app.exit(information);
    if (!std::cout.flush()) failure("standard output: not everything could be written (is its disk full?)");
    std::exit(code);
  } catch (const CLI::ParseError& error) {
    user_error("command line: %s; see ./train --help", error.what());
  }
  if (std::vector<std::string> rest = app.remaining(); !rest.empty()) {
    if (rest[0].rfind("-", 0) == 0)
      user_error("command line: %s is unknown%s", rest[0].c_str(), did_you_mean(rest[0], names).c_str());
    user_error("command line: \"%s\" after \"%s\": one configuration at a time", rest[0].c_str(), flags.config.c_str());
  }
  if (!flags.encode.empty()) return flags;
  if (flags.config.empty())
    user_error(
        "command line: no configuration given%s; try ./train configs/quickstart.json, or ./train --help",
        resume->count() && !flags.resume.empty()
            ? format(" (%s was taken as --resume's folder: put the configuration first)", flags.resume.c_str()).c_str()
            : "");
  if (!flags.lengths.empty() && !flags.eval && !flags.passkey)
    user_error("command line: --lengths requires --eval or --passkey; see ./train --help");
  flags.resuming = resume->count() > 0;
  flags.generating = generate->count() > 0;
  if (flags.resuming && flags.resume.empty()) flags.resume = "latest";
  for (int i = 0; i < argc; i++) flags.command += (i ? " " : "") + std::string(argv[i]);
  return flags;
}
