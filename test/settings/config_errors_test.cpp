// The errors of the configuration, each with its text: values, keys, malformed JSON, impossible combinations, hostile
// bytes.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/json.h"
#include "base/text.h"
#include "settings/config.h"
#include "settings/table.h"
#include "test/support/error_of.h"

using Sets = std::vector<std::string>;

static std::string error_in(const std::string& json, const Sets& sets = {}) {
  return error_of([&] { parse_config(json, "x.json", sets); });
}
static void expect_error(const std::string& json, const Sets& sets, const std::string& expected) {
  EXPECT_EQ(error_in(json, sets), "user: config: " + expected) << json;
}

// {"model": {"layers": VALUE}} for model.layers
static std::string file_with(const std::string& key, const std::string& value) {
  std::string begin, end;
  for (const std::string& part : split(key, '.')) begin += "{\"" + part + "\": ", end += "}";
  return begin + value + end;
}
// The value, as JSON, is refused as that of a file's only key, with the words that follow KEY = VALUE.
static void expect_wrong(const std::string& key, const std::string& value, const std::string& problem) {
  expect_error(file_with(key, value), {}, key + " = " + value + " " + problem + "  [x.json]");
}

TEST(ConfigErrors, EveryNumberHasLimits) {
  Config c;
  int checked = 0;
  for (auto& row : config_rows(c)) {
    if (!*row.allowed || std::holds_alternative<EnumField>(row.value)) continue;
    if (std::string(row.key) == "seed") continue;  // its limit is the type's, below
    Interval range = interval(row.allowed);
    std::string key = row.key;
    std::vector<std::string> bad = {"1e300", "-1e300", "nan", "inf", "-inf", "",    "x",
                                    "0x10",  "1 ",     " 1",  "+1",  "1e",   "true"};
    bad.push_back(json_number(range.low_open ? range.low : range.low - 1));
    bad.push_back(json_number(range.high_open ? range.high : range.high + (range.high < 1e15 ? 1 : 2)));
    for (auto& value : bad) {
      if (value == "0" && row.automatic) continue;
      if (value == "" && std::holds_alternative<std::vector<int>*>(row.value)) continue;  // the empty list
      EXPECT_EQ(error_in("{}", {key + "=" + value}).rfind("user: config: " + key + " = ", 0), 0u)
          << key << "=" << value;
      checked++;
    }
    if (!std::holds_alternative<double*>(row.value)) {
      EXPECT_NE(error_in("{}", {key + "=1.5"}), "") << key;
    }
  }
  EXPECT_GT(checked, 400);
}

TEST(ConfigErrors, EveryChoiceIsCheckedAndEveryBooleanToo) {
  Config c;
  int accepted = 0;
  for (auto& row : config_rows(c)) {
    std::string key = row.key;
    if (std::holds_alternative<bool*>(row.value)) {
      EXPECT_EQ(error_in("{}", {key + "=1"}), "user: config: " + key + " = \"1\" must be true or false  [--set]");
      EXPECT_EQ(error_in("{}", {key + "=false"}), "");
    }
    auto* names = std::get_if<EnumField>(&row.value);
    if (!names) continue;
    expect_has(error_in("{}", {key + "=zzzzzzz"}), {key + " = \"zzzzzzz\" is unknown", " ("});
    for (const char* name : names->names) {
      std::string error = error_in("{}", {key + "=" + name});
      EXPECT_EQ(error.find("is unknown"), std::string::npos) << error;  // cross-checks may reject it
      accepted++;
    }
  }
  EXPECT_GE(accepted, 50);
}

// "a, b, c": what the table allows for a key.
static std::string allowed_names(const std::string& key) {
  Config config;
  return allowed_text(config_row(config, key), ", ");
}

TEST(ConfigErrors, RefusalsOfValues) {
  std::string kinds = allowed_names("attention.kind"), variants = allowed_names("attention.variant");
  EXPECT_EQ(kinds.rfind("softmax, lssa, lssar, relu", 0), 0u) << kinds;
  for (std::string value : {"\"twelve\"", "1.5", "[12]", "-1", "99999999999", "4294967297"})
    expect_wrong("model.layers", value, "must be an integer in [1, 1000]");
  for (auto& [key, value, problem] : std::vector<std::array<std::string, 3>>{
           {"attention.kind", R"("lsar")", "is unknown (" + kinds + "); did you mean \"lssar\"?"},
           {"attention.kind", "3", "must be one of " + kinds},
           {"attention.scale", R"("number")", "is unknown (rsqrt_d, logd_logn, logn, ssmax, a number in [-1e6, 1e6])"},
           {"model.norm", R"("rmsnrm")", "is unknown (layernorm, rmsnorm); did you mean \"rmsnorm\"?"},
           {"model.mlp", R"("swiglue")", "is unknown (gelu, relu2, swiglu); did you mean \"swiglu\"?"},
           {"model.bias", "1", "must be true or false"},
           {"model.logit_cap", "-1", "must be a number in [0, 1e6]"},
           {"attention.scale", "10000000.0", "must be a name or a number in [-1e6, 1e6]"},
           {"attention.variant", R"("lssr")", "is unknown (" + variants + "); did you mean \"lssa\"?"},
           {"batch.micro", "-1", "must be an integer in [1, 65535], or 0 for as many as fit, at most 64"},
           {"seed", "-1", "must be an integer in [0, 18446744073709551615]"},
           {"seed", "1e+19", "is beyond the integers that floating point holds exactly; write it with all its digits"},
           {"optimizer.beta1", "1", "must be a number in [0, 0.9999999]"},
           {"optimizer.eps", "0", "must be a number in [1e-30, 1]"},
           {"optimizer.lr", R"("6e-4")", "must be a number in [0, 1000]"},
           {"optimizer.muon.lr", "0", "must be a number in (0, 1000]"},
           {"optimizer.muon.momentum", "1", "must be a number in [0, 0.9999999]"},
           {"data.shuffle", "1", "must be true or false"},
           {"data.train", "[1]", "must be text or a list of text items"},
           {"data.train", R"({"a":"b"})", "must be text or a list of text items"},
           {"init", "5", "must be text"},
           {"init", R"("a\u0000b")", "must not contain a zero byte"},
           {"init", R"("a\u001b]0;b\u0007")", "must have no control characters"},
           {"data.train", R"(["a","b\nsaved"])", "must have no control characters"},
           {"eval.lengths", R"([1,"2"])", "must be a list of integers in [1, 16777216]"},
           {"eval.lengths", "[0]", "must be a list of integers in [1, 16777216]"},
           {"name", R"("step_00000007")", "is the name of a checkpoint's folder; give the run another"}})
    expect_wrong(key, value, problem);
  for (std::string name : {".", "..", "a/b", "/", "a\nb", "\x7f"})
    expect_wrong("name", json_quote(name),
                 "must be a plain folder name: 1 to 200 bytes of UTF-8, no slash, no control characters");
  expect_error(R"({"seed": 18446744073709551616})", {},
               "seed = 1.8446744073709552e+19 must be an integer in [0, 18446744073709551615]  [x.json]");
  for (auto& [set, error] : std::vector<std::pair<std::string, std::string>>{
           {"model.layers=1e-400", "model.layers = 0.0 must be an integer in [1, 1000]"},
           {"model.layers=twelve", "model.layers = \"twelve\" must be an integer in [1, 1000]"},
           {"optimizer.eps=1e-400", "optimizer.eps = 0.0 must be a number in [1e-30, 1]"},
           {"optimizer.lr=inf", "optimizer.lr = \"inf\" must be a number in [0, 1000]"},
           {"optimizer.lr=nan", "optimizer.lr = \"nan\" must be a number in [0, 1000]"},
           {"data.train=a,,b", R"(data.train = ["a","","b"] must not contain an empty name)"}})
    expect_error("{}", {set}, error + "  [--set]");
  expect_has(error_in("{}", {"attention.variant=LSSAR"}), {"; did you mean \"lssar\"?"});
  for (std::string key : {"attention.variant", "attention.kind", "attention.sink"})
    expect_has(error_in("{}", {key + "=softmax1"}), {"); softmax1 is attention.sink = \"one\"  ["});
  for (auto* file : {"a/...json", "\xff.json", "a/.json"})  // the name comes from there
    expect_user_error([&] { parse_config("{}", file); }, {"; it comes from the file's name: give another with"});
  EXPECT_EQ(error_in("{}", {"name=step_size_3"}) + error_in("{}", {"name=step_3"}), "");
  EXPECT_NE(error_in("{}", {"name=" + std::string(201, 'x')}), "");
  EXPECT_EQ(error_in("{}", {"name=" + std::string(200, 'x')}), "");
  EXPECT_EQ(error_in(R"({"generate": {"prompt": "a\nb", "stop": "\n"}})"), "");  // both may have control characters
}

TEST(ConfigErrors, RefusalsOfKeys) {
  expect_error(R"({"model": {"layer": 3}})", {}, "model.layer is unknown; did you mean \"model.layers\"?  [x.json]");
  expect_error(R"({"layers": 3})", {}, "layers is unknown; did you mean \"model.layers\"?  [x.json]");
  expect_error(R"({"attention": {"gate": {"activaton": "silu"}}})", {},
               "attention.gate.activaton is unknown; did you mean \"attention.gate.activation\"?  [x.json]");
  expect_error(R"({"la\nyers": 3})", {}, R"(the key "la\nyers" has control characters  [x.json])");
  expect_error(R"({"": 1})", {}, "the key \"\" is empty; remove it, or see --help for the keys  [x.json]");
  expect_error(R"({"zzzzzz": {}})", {}, "zzzzzz is unknown; see --help  [x.json]");
  expect_error(R"({"model": 12})", {}, "model = 12 must be an object: \"model\": {...}  [x.json]");
  expect_error(R"({"attention": {"gate": "sigmoid"}})", {},
               "attention.gate = \"sigmoid\" must be an object: \"gate\": {...}  [x.json]");
  expect_error(R"({"model.layers": 12})", {},
               "the key \"model.layers\" has a dot; nest objects instead: \"model\": {\"layers\": 12}  [x.json]");
  // Names of other programs.
  const std::map<const char*, const char*> elsewhere = {
      {"optimizer.learning_rate", "optimizer.lr"}, {"batch_size", "batch.tokens"}, {"train.batch_size", "batch.tokens"},
      {"eval.batch_size", "eval.batch"},           {"max_iters", "train.steps"},   {"model.n_embd", "model.channels"},
      {"num_hidden_layers", "model.layers"}};
  for (auto [theirs, ours] : elsewhere) {
    expect_error("{}", {format("%s=1", theirs)}, format("%s is unknown; did you mean \"%s\"?  [--set]", theirs, ours));
    Config c;
    EXPECT_NO_THROW(config_row(c, ours));
  }
  expect_error("{}", {"optimiser.lr=1"}, "optimiser.lr is unknown; did you mean \"optimizer.lr\"?  [--set]");
  expect_error("{}", {"attention.gate=softplus"},
               "attention.gate is a group of keys; set one of attention.gate.activation, attention.gate.granularity, "
               "attention.gate.op, attention.gate.position, attention.gate.input, attention.gate.weight_init, "
               "attention.gate.bias, attention.gate.bias_init  [--set]");
  expect_error("{}", {"=1"}, "--set =1 has no key; write --set key=value");
  expect_error("{}", {"model.layers"}, "--set model.layers has no \"=\"; write --set key=value");
  expect_error("{}", {"name=\xff"}, "--set \"name=\xEF\xBF\xBD\" is not UTF-8");
}

TEST(ConfigErrors, SeveralAreReportedTogether) {
  expect_error(R"({"typo": 1, "model": {"layers": 0, "leyers": 2}, "seed": "x"})", {"optimizer.lr=fast", "z"},
               "model.leyers is unknown; did you mean \"model.layers\"?  [x.json]\n"
               "config: typo is unknown; see --help  [x.json]\n"
               "config: --set z has no \"=\"; write --set key=value\n"
               "config: seed = \"x\" must be an integer in [0, 18446744073709551615]  [x.json]\n"
               "config: model.layers = 0 must be an integer in [1, 1000]  [x.json]\n"
               "config: optimizer.lr = \"fast\" must be a number in [0, 1000]  [--set]");
  expect_error(R"({"attention": {"sink": "one"}})", {"attention.kind=relu", "batch.tokens=1000"},
               "attention.sink = \"one\" needs a layer of the kind softmax (attention.kind, attention.layers); use "
               "sink \"none\"  [--set]\n"
               "config: batch.tokens = 1000 must be a multiple of context = 1024; use 1024  [--set]");
  for (auto [unknown, end] :
       {std::pair{7, "[x.json]"}, std::pair{8, "\nand 1 more"}, std::pair{100, "\nand 93 more"}}) {
    std::string many;
    for (int i = 0; i < unknown; i++) many += format("\"zzz%d\": 1, ", i);
    std::string error = error_in("{" + many + "\"seed\": -1}");
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), unknown == 7 ? 7 : 8);
    EXPECT_TRUE(error.ends_with(end)) << error;
  }
}

// The reason, between the place and the file, is nlohmann's and differs by its version.
static void expect_malformed(const std::string& json, const std::string& place, const std::string& shown) {
  std::string error = error_in(json);
  EXPECT_TRUE(error.starts_with("user: config: not valid JSON at " + place + ": ")) << error;
  EXPECT_TRUE(error.ends_with("  [x.json]\n" + shown)) << error;
  for (auto* part : {"json.exception", "last read", ": parse error"}) EXPECT_EQ(error.find(part), error.npos) << error;
}

TEST(ConfigErrors, MalformedJsonIsShownWithItsPlace) {
  expect_malformed("{\n  \"name\": \"x\",\n  \"model\": {\"layers\": 4,,}\n}", "line 3, column 25",
                   "      \"model\": {\"layers\": 4,,}\n                            ^");
  expect_malformed("", "line 1, column 1", "    \n    ^");
  expect_malformed("{\"name\": \"ä\", x}", "line 1, column 15", "    {\"name\": \"ä\", x}\n                  ^");
  expect_malformed("{\"seed\": NaN}", "line 1, column 10", "    {\"seed\": NaN}\n             ^");
  expect_error("{\"optimizer\": {\"lr\": 1e999}}", {},
               "not valid JSON at line 1, column 22: the number 1e999 is too large  [x.json]\n"
               "    {\"optimizer\": {\"lr\": 1e999}}\n                         ^");
  expect_malformed("{\"name\": \"\xff\"}", "line 1, column 11", "    {\"name\": \"?\"}\n              ^");
  expect_malformed("{} {}", "line 1, column 4", "    {} {}\n       ^");
  expect_error("[1]", {}, "the file must hold one JSON object: {...}  [x.json]");
  expect_error(R"({"model": {"layers": 1, "heads": 1, "layers": 2}})", {},
               "the key \"layers\" is given twice in one object; remove one  [x.json]");
  expect_error(R"({"_": {"a": 1, "a": 2}})", {}, "the key \"a\" is given twice in one object; remove one  [x.json]");
  // Only the part of a long line near the place is shown, without bytes that a terminal would act upon.
  std::string error = error_in("{\"name\": \"" + std::string(100000, 'x') + "\x1b[31m\"}");
  EXPECT_LT(error.size(), 400u);
  EXPECT_EQ(error.find('\x1b'), std::string::npos);
}

TEST(ConfigErrors, NestingAndSizeAreLimited) {
  auto nested = [](int levels) {
    std::string open(levels - 1, '['), close(levels - 1, ']');
    return format("{\"_\": %s%s}", open.c_str(), close.c_str());
  };
  EXPECT_EQ(error_in(nested(JSON_MAX_DEPTH)), "");
  expect_error(nested(JSON_MAX_DEPTH + 1), {}, "more than 32 levels of nested JSON  [x.json]");
  expect_error(std::string(500000, '['), {}, "more than 32 levels of nested JSON  [x.json]");
  expect_error("{}" + std::string(1 << 20, ' '), {},
               "1048578 bytes are too many for a configuration (at most 1048576)  [x.json]");
}

TEST(ConfigErrors, CrossChecks) {
  for (auto& [key, value, problem] : std::vector<std::array<std::string, 3>>{
           {"model.channels", "104", "is not divisible by model.heads = 12; change one of them, or set model.head_dim"},
           {"model.channels", "36", "must be a multiple of 8"},
           {"model.head_dim", "513", "must be an integer in [1, 512], or 0 for channels / heads"},
           {"model.head_dim", "63",
            "must be even with model.position = \"rope\"; change it, or use \"learned\" or \"none\""}})
    expect_wrong(key, value, problem);
  for (auto& [ratio, shown, width] :
       {std::tuple("3.3", "3.3", 2534), std::tuple("1e-9", "1e-09", 0), std::tuple("3.501", "3.501", 2689)})
    expect_error(
        file_with("model.mlp_ratio", ratio), {},
        format("the MLP width must be a multiple of 8, but round(model.mlp_ratio x model.channels) = round(%s x 768) "
               "= %d  [x.json]",
               shown, width));
  expect_error(R"({"model": {"logit_cap": 1e-4}})", {},
               "model.logit_cap = 0.0001 leaves logits no room; use a larger one, such as 15 or 30, or 0 for none  "
               "[x.json]");
  expect_error(
      R"({"model": {"heads": 1}})", {},
      "model.head_dim would be channels / heads = 768, at most 512 is possible; use more heads or set it  [x.json]");
  for (auto& [sink, other] : {std::pair("learned", R"("kind": "lssa")"), std::pair("one", R"("layers": ["lssa"])")})
    expect_error(format("{\"attention\": {\"sink\": \"%s\", %s}}", sink, other), {"model.layers=1"},
                 format("attention.sink = \"%s\" needs a layer of the kind softmax (attention.kind, attention.layers); "
                        "use sink \"none\"  [x.json]",
                        sink));
  expect_error(R"({"attention": {"scale": "logn"}, "model": {"context": 1}})", {},
               "attention.scale = \"logn\" divides by ln(model.context) and needs a context of at least 2  [x.json]");
  expect_error(
      R"({"attention": {"gate": {"granularity": "headwise", "position": "output"}}})", {},
      "attention.gate.granularity = \"headwise\" does not exist at attention.gate.position = \"output\", where the "
      "heads are mixed already; use \"elementwise\" or another position  [x.json]");
  expect_error(
      R"({"attention": {"gate": {"granularity": "shared"}}})",
      {"attention.gate.activation=silu", "attention.gate.position=output"},
      "attention.gate.granularity = \"shared\" does not exist at attention.gate.position = \"output\", where the "
      "heads are mixed already; use \"elementwise\" or another position  [--set]");
  expect_error(
      R"({"attention": {"gate": {"activation": "exp", "input": "none", "bias": false}}})", {},
      "attention.gate.input = \"none\" leaves attention.gate.bias alone to be learned, which is false; set it to "
      "true  [x.json]");
  expect_error(R"({"model": {"heads": 6, "kv_heads": 4}})", {},
               "model.kv_heads = 4 does not divide model.heads = 6; use a divisor of it  [x.json]");
  expect_error(R"({"train": {"steps": 100, "tokens": 5000}})", {},
               "train.steps = 100 and train.tokens = 5000 are both given; remove one of them, or unset it: --set "
               "train.steps=null  [x.json]");
  expect_error(R"({"eval": {"rope_scaling": "yarn"}, "model": {"position": "none"}})", {},
               "eval.rope_scaling = \"yarn\" needs model.position = \"rope\", not \"none\"  [x.json]");
  expect_error(R"({"eval": {"rope_scaling": "ntk"}, "model": {"head_dim": 2}})", {},
               "eval.rope_scaling = \"ntk\" needs model.head_dim > 2, not 2  [x.json]");
  expect_error(R"({"optimizer": {"matrices": "muon", "lr": 0}})", {},
               "optimizer.lr = 0 leaves all but the matrices as they are; with optimizer.matrices = \"muon\" set both "
               "rates  [x.json]");
  expect_error(R"({"optimizer": {"matrices": "muon", "muon": {"scale": "rms"}}})", {},
               "optimizer.muon.scale = \"rms\" needs another rate than the default, which is spectral's; set "
               "optimizer.muon.lr, near optimizer.lr  [x.json]");
  expect_error(R"({"model": {"kv_heads": 1, "head_dim": 1, "position": "none"}})", {"optimizer.matrices=muon"},
               "optimizer.matrices = \"muon\" finds matrices of one column, whose orthogonal updates all have one "
               "length; use more heads (model.kv_heads), wider ones (model.head_dim), or \"adamw\"  [--set]");
  for (auto* fine :
       {R"({"optimizer": {"matrices": "muon", "muon": {"scale": "rms", "lr": 1e-3}}})",
        R"({"optimizer": {"matrices": "muon"}, "model": {"heads": 2, "head_dim": 1, "position": "none"}})",
        R"({"model": {"channels": 104, "head_dim": 36}})", R"({"model": {"head_dim": 63, "position": "learned"}})",
        R"({"model": {"mlp_ratio": 3.5001}})",  // rounds to 2688
        R"({"train": {"steps": 100, "tokens": 0}})", R"({"eval": {"rope_scaling": "ntk"}, "model": {"head_dim": 4}})"})
    EXPECT_EQ(error_in(fine), "");
}

TEST(ConfigErrors, KindsOfAnotherBuild) {
  std::string way = "; to use your own kind, build with its file, which checkpoints hold: make KINDS=PATH.cuh";
  for (auto* key : {"attention.kind", "attention.variant"})
    expect_wrong(key, "\"my_score\"", "is unknown (" + allowed_names(key) + ")" + way);
  expect_error(R"({"attention": {"cap": 50, "kind_file": "my_score 0123"}})", {},
               "attention.cap is unknown in this build" + way +
                   "  [x.json]\nconfig: attention.kind_file is unknown in this build" + way + "  [x.json]");
  expect_error(R"({"attention": {"cap": 50}})", {},
               "attention.cap is unknown; did you mean \"attention.scale\"?  [x.json]");
}

TEST(ConfigErrors, EntriesOfLayers) {
  const std::string keys = " is unknown (kind, bias, window, documents, rotated, gated)";
  for (auto& [entry, problem] : std::vector<std::pair<std::string, std::string>>{
           {R"({"windw":3})", R"("windw")" + keys + R"(; did you mean "window"?)"},
           {R"({"window":3,"x.y":{}})", R"("x.y")" + keys},
           {R"({"window":-1})", "window must be an integer in [0, 16777216]"},
           {R"({"window":true})", "window must be an integer in [0, 16777216]"},
           {R"({"rotated":"no"})", "rotated must be true or false"},
           {R"({"bias":0})", "bias must be one of none, alibi, fox, cable"},
           {R"({"documents":"seperate"})", R"(documents is unknown (joined, separate); did you mean "separate"?)"},
           {R"("lsssar")", "kind is unknown (" + allowed_names("attention.kind") + R"(); did you mean "lssar"?)"},
           {R"({"kind":"mine"})", "kind is unknown (" + allowed_names("attention.kind") +
                                      "); to use your own kind, build with its file, which checkpoints hold: make "
                                      "KINDS=PATH.cuh"},
           {"3", R"(an entry must be a kind or an object, such as {"kind": "lssar", "window": 256})"},
           {"[]", R"(an entry must be a kind or an object, such as {"kind": "lssar", "window": 256})"},
           {R"({"gated":true})", R"("gated" needs an attention.gate.activation; set it, or remove "gated")"},
           {R"({"window":0})",
            R"("window" needs attention.window > 0, eval.window, or an entry with a window; set it, or )"
            R"(remove "window")"},
           {R"({"documents":"joined"})",
            R"("documents" needs attention.documents = "separate"; set it, or remove "documents")"}})
    expect_wrong("attention.layers", "[{}," + entry + "]", "has " + entry + ": " + problem);
  expect_error(
      R"({"attention": {"layers": [{"rotated": false}]}, "model": {"position": "none"}})", {},
      R"(attention.layers = [{"rotated":false}] has {"rotated":false}: "rotated" needs model.position = "rope"; )"
      R"(set it, or remove "rotated"  [x.json])");
  for (auto* none : {"window0", "window8k", "ful", "lssar_lssa", "_gated"})
    expect_has(error_in("{}", {format("attention.layers=%s", none)}), {format("has \"%s\": kind is unknown", none)});
  expect_has(error_in("{}", {"attention.layers=[{window: 3}]"}), {R"(this is not JSON; in a shell, write --set ')"});
  EXPECT_EQ(error_in(R"({"attention": {"layers": [{"window": 8}, {"window": 0}]}})"), "");
  const std::string no_window = R"({"attention": {"layers": [{"window": 0}]}})";
  for (auto* window : {"attention.window=5", "eval.window=5"}) EXPECT_EQ(error_in(no_window, {window}), "");
  EXPECT_EQ(parse_config(no_window, "x.json", {}, false).layers.size(), 1u);  // an evaluation leaves out the windows
}

TEST(ConfigErrors, BatchMustDivide) {
  expect_wrong("batch.tokens", "1000", "must be a multiple of context = 1024; use 1024");
  expect_error(R"({"batch": {"tokens": 524288, "micro": 3}})", {},
               "batch.tokens = 524288 must be a multiple of micro x context = 3 x 1024 = 3072; use 522240 or 525312, "
               "or batch.micro = 0 for one that divides  [x.json]");
  expect_error(R"({"batch": {"micro": 2000}, "model": {"context": 65536}})", {},
               "model.context = 65536: 2000 sequences of this length are too many for one pass with 12 heads and "
               "768 channels; use batch.micro = 341 at most  [x.json]");
  expect_has(error_in(R"({"model": {"context": 16777216, "heads": 96, "channels": 768}})"),
             {"1 sequence of this length are too many for one pass with 96 heads and 768 channels; use a shorter one"});
  expect_has(error_in(R"({"batch": {"micro": 200}, "model": {"context": 65536, "mlp": "swiglu"}})"),
             {"use batch.micro = 128 at most"});
  EXPECT_EQ(error_in(R"({"model": {"context": 16777216}, "batch": {"tokens": 16777216}, "eval": {"every": 0}})"), "");
  Config c = parse_config(R"({"batch": {"tokens": 6144, "micro": 2}})", "x.json");
  EXPECT_EQ(error_of([&] { resolve_batch(c, 2, 64); }),
            "user: config: batch.tokens = 6144 must be a multiple of micro x context x ranks = 2 x 1024 x 2 = 4096; "
            "use 4096 or 8192, or batch.micro = 0 for one that divides  [x.json]");
  resolve_batch(c, 3, 1);
  EXPECT_EQ(c.batch.micro, 2);
  EXPECT_EQ(micro_steps(c, 3), 1);
  EXPECT_EQ(micro_steps(c, 1), 3);
}

TEST(ConfigErrors, EvaluationLengths) {
  expect_error(
      R"({"model": {"position": "learned"}, "eval": {"lengths": [1024, 2048]}})", {},
      "eval.lengths = 2048 is beyond the 1024 positions that model.position = \"learned\" has (model.context); only "
      "\"rope\" and \"none\" go further  [x.json]");
  expect_error(R"({"eval": {"tokens": 1000}})", {},
               "eval.lengths = 1024 is longer than eval.tokens = 1000, so no window would be evaluated; raise "
               "eval.tokens  [x.json]");
  EXPECT_EQ(error_in(R"({"eval": {"tokens": 1000, "every": 0}})"), "");  // never evaluated
  expect_error(R"({"eval": {"lengths": [65536], "batch": 65535}})", {},
               "eval.lengths = 65536: 65535 sequences of this length are too many for one pass with 12 heads and 768 "
               "channels; use eval.batch = 341 at most  [x.json]");
  Config c = parse_config(R"({"model": {"position": "learned"}})", "x.json");
  EXPECT_EQ(
      error_of([&] {
        check_lengths(c, {1024, 1025}, "--lengths");
      }),
      "user: --lengths = 1025 is beyond the 1024 positions that model.position = \"learned\" has (model.context); only "
      "\"rope\" and \"none\" go further  [x.json]");
  EXPECT_EQ(parse_lengths("1024,2048", "--lengths"), (std::vector<int>{1024, 2048}));
  for (auto* bad : {"", ",", "1024,", "12a", "-5", "0", "1.5"})
    EXPECT_EQ(error_of([&] { parse_lengths(bad, "--lengths"); }),
              std::string("user: --lengths ") + bad + " must be a list of integers in [1, 16777216], as in 1024,2048");
  c = parse_config("{}", "", {"batch.micro=4"});
  EXPECT_EQ(eval_batch(c, 1024), 4);
  EXPECT_EQ(eval_batch(c, 2048), 2);
  EXPECT_EQ(eval_batch(c, 100000), 1);
  EXPECT_EQ(eval_batch(c, 128), 32);
  EXPECT_EQ(eval_batch(parse_config("{}", "", {"eval.batch=3"}), 128), 3);
}

TEST(ConfigErrors, FilesThatCannotBeRead) {
  EXPECT_EQ(error_of([] { load_config("no/such.json"); }),
            "user: config: cannot read the file: No such file or directory  [no/such.json]");
  EXPECT_EQ(error_of([] { load_config("/"); }), "user: config: cannot read the file: Is a directory  [/]");
  EXPECT_EQ(error_of([] { load_config("/dev/zero"); }),
            "user: config: the file has more than 1048576 bytes  [/dev/zero]");
}

// For any bytes the result is a Config or a UserError.
TEST(ConfigErrors, UntrustedBytes) {
  const std::string good = R"({"model":{"layers":4,"mlp_ratio":2.5},"attention":{"variant":"lssar","scale":0.5},
    "data":{"train":["a","b"],"shuffle":false},"eval":{"lengths":[1,2]},"_c":[null,true,{"x":"\u00e4"}],
    "seed":18446744073709551615})";
  ASSERT_EQ(error_in(good), "");
  int accepted = 0, refused = 0;
  auto feed = [&](const std::string& bytes) {
    std::string error = error_in(bytes);
    EXPECT_TRUE(error.empty() || error.rfind("user: config: ", 0) == 0) << error;
    EXPECT_LT(error.size(), 2000u);
    (error.empty() ? accepted : refused)++;
  };
  for (size_t n = 0; n < good.size(); n++) feed(good.substr(0, n));
  EXPECT_EQ(accepted, 0);
  std::mt19937 random(1);
  const std::string pieces = "{}[]\",:0123456789eE+-.\\utrue \n\xff\xc3\x00";
  for (int i = 0; i < 3000; i++) {
    std::string bytes = good;
    for (int edits = 1 + random() % 3; edits > 0; edits--) {
      size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.insert(at, 1, pieces[random() % pieces.size()]); break;
        default: bytes.erase(at, 1 + random() % 8);
      }
      if (bytes.empty()) bytes.assign(1, ' ');
    }
    feed(bytes);
    feed(bytes.substr(random() % bytes.size()));
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 1000);
}

// attention/score.h: keys of kinds that are files.
TEST(ConfigErrors, ParametersOfFilesAreNewKeys) {
  Config c;
  KindRow file = {};
  file.path = "/a/x.cuh", file.text = "one line\n\n{\"power\", 1}, {\"gate\", 1}";
  auto check = [&](const char* name, double initial = 1) {
    check_parameter(file, {name, initial, "(0, 10]", "help"}, config_rows(c));
  };
  for (const char* name : {"power", "gate"})
    expect_user_error(
        [&] { check(name); },
        {format("/a/x.cuh:3: the parameter \"%s\" would be the key attention.%s", name, name), "give it another name"});
  expect_user_error([&] { check("pow", 0); }, {"/a/x.cuh:", "the default 0 of \"pow\" is not in its range (0, 10]"});
  EXPECT_NO_THROW(check("pow"));
  EXPECT_NO_THROW(check_parameter(file, {"power", 1, "(0, 10]", ""}, config_rows(c), "_init"));
  ConfigRow taken = config_row(c, "attention.gate.bias_init");
  taken.key = "attention.bias_init";
  expect_user_error(
      [&] {
        check_parameter(file, {"bias", 1, "(0, 10]", ""}, {taken}, "_init");
      },
      {"would be the key attention.bias_init"});
  file.name = "ssmax";
  expect_user_error([&] { check_kind_name(file, variants()); }, {"/a/x.cuh: \"ssmax\" is a variant already", "rename"});
  file.name = "my_score";
  EXPECT_NO_THROW(check_kind_name(file, variants()));
}
