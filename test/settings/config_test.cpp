// The configuration: variants, every source and its precedence, derived values, output.
// Its errors are tested in config_errors_test.cpp.
#include "settings/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "settings/table.h"
#include "test/support/error_of.h"

using Sets = std::vector<std::string>;

// {"attention.kind": "\"softmax\"", ...} of the settings that differ from the defaults
static std::map<std::string, std::string> changes(Config config) {
  Config defaults = parse_config("{}", "");
  auto rows = config_rows(config), default_rows = config_rows(defaults);
  std::map<std::string, std::string> found;
  for (size_t i = 0; i < rows.size(); i++)
    if (value_text(rows[i]) != value_text(default_rows[i])) found[rows[i].key] = value_text(rows[i]);
  return found;
}
using Changes = std::map<std::string, std::string>;

TEST(Config, IntervalsNeedNoSpace) {  // those of a kind's file are its author's
  for (const char* text : {"[0,10)", "[0, 10)", "[0 ,10)"}) {
    Interval range = interval(text);
    EXPECT_EQ(range.low, 0) << text;
    EXPECT_EQ(range.high, 10) << text;
    EXPECT_TRUE(range.contains(0) && !range.contains(10)) << text;
  }
}

TEST(Config, WhatChangesNothingIsSaidAndSoIsTheMechanism) {
  auto warnings = [](const Sets& sets) { return parse_config("{}", "x.json", sets).warnings; };
  auto idle = [](const std::string& setting, const std::string& needs, const char* source = "--set") {
    return "config: " + setting + " has no effect: it needs " + needs + "  [" + source + "]";
  };
  EXPECT_EQ(parse_config(R"({"model": {"position": "learned", "rope_base": 5e5}})", "x.json").warnings,
            Sets{idle("model.rope_base = 500000", "layers that rotate more than one pair of channels", "x.json")});
  const std::string lssar = "layers with attention.kind = \"lssar\" or \"softmaxr\"";
  for (auto& [sets, expected] : std::vector<std::pair<Sets, Sets>>{
           {{"attention.power=3"}, {idle("attention.power = 3", lssar)}},
           {{"attention.gate.activation=silu", "attention.gate.bias=false", "attention.gate.bias_init=1",
             "optimizer.schedule=constant", "optimizer.final_lr_fraction=0.5"},
            {idle("attention.gate.bias_init = 1", "layers with a gate and attention.gate.bias"),
             idle("optimizer.final_lr_fraction = 0.5", "a schedule other than \"constant\"")}},
           {{"attention.power=15", "attention.variant=lssar_softplus_gated"}, {}},
           {{"attention.variant=sigmoid_gated", "attention.gate.op=add"}, {}},
           {{"attention.variant=lssar", "attention.offset=0", "attention.offset_free_rows=10"},
            {idle("attention.offset_free_rows = 10", lssar + " and an attention.offset other than 0")}},
           {{"attention.variant=lssar", "attention.offset=0"}, {}},
           {{"attention.variant=lssar", "attention.power=3"}, {}},
           {{"attention.variant=softmaxr", "attention.power=3", "attention.offset=0.5"}, {}},
           {{R"(attention.layers=[{}, {"kind": "lssar", "window": 0}])", "attention.power=3", "attention.window=9"},
            {}},
           {{R"(attention.layers=[{"kind": "lssar", "window": 0}])", "attention.window=2", "attention.kind=relu"},
            {idle("attention.kind = \"relu\"", "a layer whose kind attention.layers does not say"),
             idle("attention.window = 2", "a layer whose window attention.layers does not say")}},
           {{R"(attention.layers=[{"bias": "none"}, {"bias": "alibi"}])", "attention.bias=fox"},
            {idle("attention.bias = \"fox\"", "a layer whose bias attention.layers does not say")}},
           {{R"(attention.layers=[{"window": 3}, {"window": 2000}])", "attention.sink_tokens=1"},
            {idle("attention.layers: a window of 2000 keys",
                  "a longer length in model.context or eval.lengths, or in --lengths")}},
           {{"attention.variant=softplus_gated", "attention.gate.activation=none"}, {}}})
    EXPECT_EQ(warnings(sets), expected) << sets[0];
  EXPECT_EQ(warnings({"attention.gate.bias=false", "attention.gate.op=add", "optimizer.decay_fraction=0.5"}).size(),
            3u);
  EXPECT_EQ(warnings({"attention.layers=lssar", "attention.threshold=2"}).size(), 1u);
  EXPECT_EQ(
      warnings({R"(attention.layers=[{"window": 3}, {"window": 0}])", "attention.window=2", "attention.sink_tokens=1"})
          .size(),
      1u);
  EXPECT_EQ(warnings({R"(attention.layers=[{"window": 0}])", "attention.window=2", "attention.sink_tokens=1"}).size(),
            2u);
  EXPECT_EQ(warnings({R"(attention.layers=[{"gated": false}])", "attention.gate.activation=silu"}).size(), 1u);
  for (auto& [set, other] : {std::pair("generate.prompt=x", "generate.every=1"),
                             std::pair("eval.rope_scaling=yarn", "eval.lengths=1024,1025")}) {
    EXPECT_EQ(warnings({set}).size(), 1u) << set;
    EXPECT_TRUE(warnings({set, other}).empty()) << set;
    EXPECT_TRUE(parse_config("{}", "x.json", {set}, false).warnings.empty()) << set;
  }
  // Each of the first has no effect beside the others; with the last it has.
  const std::string longer = "eval.lengths=1024,1025",
                    mixed = R"(attention.layers=[{}, {"window": 0, "rotated": false}])";
  for (auto& [set, beside, mended] : std::vector<std::tuple<std::string, Sets, std::string>>{
           {"model.rope_base=5e5",
            {R"(attention.layers=[{"rotated": false}])"},
            R"(attention.layers=[{"rotated": false}, {"rotated": true}])"},
           {"model.rope_base=5e5", {"model.rope_fraction=0.02"}, "model.rope_fraction=0.07"},
           {"model.rope_fraction=0.5",
            {R"(attention.layers=[{"rotated": false}])"},
            R"(attention.layers=[{"rotated": false}, {"rotated": true}])"},
           {"eval.rope_scaling=yarn",
            {longer, R"(attention.layers=[{"rotated": false}])"},
            R"(attention.layers=[{"rotated": true}])"},
           {"eval.window=8",
            {longer, R"(attention.layers=[{"window": 0}])"},
            R"(attention.layers=[{"window": 0}, {}])"},
           {"eval.window=8",
            {longer, R"(attention.layers=[{"window": 9}])"},
            R"(attention.layers=[{"window": 9}, {}])"},
           {"eval.sink_tokens=1", {longer, "eval.window=8", R"(attention.layers=[{"window": 0}])"}, mixed},
           {mixed, {"attention.window=2", "model.layers=1"}, "model.layers=2"},
           {"attention.window=1024", {}, longer},
           {"generate.top_k=5", {"generate.temperature=0"}, "generate.temperature=1"},
           {"generate.tokenizer_dir=x", {"generate.tokenizer=bytes"}, "generate.tokenizer=gpt2"},
           {"checkpoint.minutes=5", {"checkpoint.every=0"}, "checkpoint.every=1"}}) {
    Sets sets = beside;
    sets.insert(sets.begin(), set);
    std::vector<std::string> found = warnings(sets);
    std::string key = set.substr(0, set.find('='));
    auto names = [&](const std::string& warning) { return warning.starts_with("config: " + key); };
    EXPECT_EQ(std::ranges::count_if(found, names), 1) << set;
    sets.push_back(mended);
    EXPECT_TRUE(warnings(sets).empty()) << set << ": " << warnings(sets)[0];
  }
  // What a variant sets, also where a run's config.json spells it out.
  Config ungated = parse_config("{}", "x.json", {"attention.variant=softplus_gated", "attention.gate.activation=none"});
  EXPECT_TRUE(ungated.warnings.empty());
  EXPECT_TRUE(parse_config(config_text(ungated), "y.json").warnings.empty());

  auto changes = [](const std::vector<std::string>& before, const std::vector<std::string>& now) {
    std::string list;
    for (auto& c : changed_model(parse_config("{}", "x.json", before), parse_config("{}", "x.json", now)))
      list += c.key + " " + c.was + " " + c.is + "; ";
    return list;
  };
  EXPECT_EQ(changes({"attention.variant=relu"}, {"attention.kind=relu"}), "");
  EXPECT_EQ(changes({}, {"attention.family=general"}), "");  // the bits of the run, not what its weights compute
  EXPECT_EQ(changes({"attention.power=3"}, {"optimizer.lr=1", "attention.gate.weight_init=zero"}), "");
  EXPECT_EQ(changes({"attention.power=3"}, {"attention.variant=lssa"}),
            "attention.qk_norm \"none\" \"l2\"; attention.scale \"rsqrt_d\" \"logd_logn\"; attention.kind \"softmax\" "
            "\"lssa\"; ");
  EXPECT_EQ(
      changes({"attention.variant=lssar", "attention.power=3"}, {"attention.variant=lssar", "model.context=2048"}),
      "model.context 1024 2048; attention.power 3 15; ");

  auto text = [](const std::vector<std::string>& sets) { return attention_text(parse_config("{}", "x.json", sets)); };
  EXPECT_EQ(text({}), "softmax attention");
  EXPECT_EQ(text({"attention.variant=lssar_softplus_gated"}), "lssar_softplus_gated attention");
  EXPECT_EQ(text({"attention.variant=lssar", "attention.power=3", "attention.gate.activation=tanh"}),
            "lssar attention with power = 3, gate.activation = \"tanh\"");
  EXPECT_EQ(text({"attention.variant=lssar", "attention.kind=softmax"}),
            "softmax attention with qk_norm = \"l2\", scale = \"logd_logn\"");
  EXPECT_EQ(text({"attention.kind=relu", "model.position=none"}), "relu attention with position = \"none\"");
  for (const char* kind : kind_names)
    EXPECT_EQ(text({std::string("attention.variant=") + kind}), kind + std::string(" attention"));
}

TEST(Config, NullIsAsIfTheKeyWasNotGiven) {
  Config plain = parse_config("{}", "x.json"), c;
  for (const ConfigRow& row : config_rows(plain)) {
    std::string path = row.key;
    std::replace(path.begin(), path.end(), '.', '/');
    nlohmann::json file;
    file[nlohmann::json::json_pointer("/" + path)] = nullptr;
    c = config_from_json(file, "x.json");
    EXPECT_EQ(c.origins, plain.origins) << row.key;
    file[nlohmann::json::json_pointer("/" + path)] = value_json(row);
    c = config_from_json(file, "x.json", {std::string(row.key) + "=null"});
    EXPECT_EQ(c.origins, plain.origins) << row.key;
  }
  c = parse_config(R"({"train": {"steps": 100}})", "x.json", {"train.steps=null", "train.tokens=1e6"});
  EXPECT_EQ(c.train.steps, 2);
  EXPECT_EQ(parse_config(R"({"seed": 5})", "x.json", {"seed=6", "seed=null"}).seed, 1337u);
  // what the variant of a resolved file spells out goes with it
  c = config_from_json(config_json(parse_config("{}", "x.json", {"attention.variant=lssar"})), "x.json",
                       {"attention.variant=null"});
  EXPECT_EQ(c.variant, "softmax");
  EXPECT_EQ(c.attention.kind, Kind::softmax);
  // A group: all of its keys, also those of groups in it
  EXPECT_EQ(parse_config(R"({"optimizer": null})", "x.json").origins, parse_config("{}", "x.json").origins);
  c = parse_config(R"({"seed": 5, "attention": {"power": 3, "gate": {"bias": true}}})", "x.json", {"attention=null"});
  EXPECT_EQ(c.origins, parse_config(R"({"seed": 5})", "x.json").origins);
}

TEST(Config, ValuesOfEveryType) {
  Config c = parse_config(R"({"name": "a b", "seed": 18446744073709551615, "precision": "bf16", "threads": 2,
      "_note": {"anything": [1, {"x": null}]},
      "model": {"layers": 3, "_x": 1, "context": 1e3, "mlp_ratio": 2, "rope_base": 5e5},
      "attention": {"scale": 0.125, "gate": {"activation": "tanh", "bias": true, "bias_init": -1.5, "_": "comment"}},
      "data": {"train": "a_*.bin", "val": ["b.bin", "c.bin"], "shuffle": false},
      "batch": {"tokens": 64000.0}, "eval": {"lengths": [1000, 2000]}})",
                          "x.json");
  EXPECT_EQ(c.name, "a b");
  EXPECT_EQ(c.seed, 18446744073709551615u);
  EXPECT_EQ(c.precision, Precision::bf16);
  EXPECT_EQ(c.model.context, 1000);
  EXPECT_EQ(c.model.mlp_width(), 1536);
  EXPECT_EQ(c.attention.scale, Scale::number);
  EXPECT_EQ(c.attention.scale_number, 0.125);
  EXPECT_TRUE(c.attention.gate.bias);
  EXPECT_EQ(c.attention.gate.bias_init, -1.5);
  EXPECT_EQ(c.data.train, std::vector<std::string>{"a_*.bin"});
  EXPECT_EQ(c.data.val, (std::vector<std::string>{"b.bin", "c.bin"}));
  EXPECT_FALSE(c.data.shuffle);
  EXPECT_EQ(c.batch.tokens, 64000);
  EXPECT_EQ(c.eval.lengths, (std::vector<int>{1000, 2000}));
  EXPECT_TRUE(c.warnings.empty());
}

TEST(Config, TheNameIsTheFilesUnlessGiven) {
  Config c = parse_config("{}", "configs/gpt2_1.5b.json");
  EXPECT_EQ(c.name, "gpt2_1.5b");
  EXPECT_EQ(c.origins.at("name"), "the file's name");
  EXPECT_EQ(parse_config("{}", "").origins.at("eval.lengths"), "model.context");
  EXPECT_EQ(parse_config(R"({"name": ""})", "a.json").name, "a");
  EXPECT_EQ(parse_config(R"({"name": "b"})", "a.json").name, "b");
  EXPECT_EQ(parse_config(R"({"name": "b"})", "a.json", {"name=c"}).name, "c");
}
TEST(Config, TheNameSaysTheVariantOfSet) {
  auto name = [](std::string variant, std::string file, std::string text = "{}") {
    return parse_config(text, file, {"attention.variant=" + variant}).name;
  };
  EXPECT_EQ(name("lssa", "configs/gpt2_124m_softmax.json"), "gpt2_124m_lssa");
  EXPECT_EQ(name("softmax", "configs/gpt2_124m_softmax.json"), "gpt2_124m_softmax");
  EXPECT_EQ(name("lssa", "configs/quickstart.json"), "quickstart_lssa");
  std::string gated = R"({"attention": {"variant": "softplus_gated"}})";
  EXPECT_EQ(name("lssa", "a_softplus_gated.json", gated), "a_lssa");
  EXPECT_EQ(name("lssa", "b_gated.json", gated), "b_gated_lssa");
  EXPECT_EQ(name("null", "a_softplus_gated.json", gated), "a_softmax");
  EXPECT_EQ(name("softplus_gated", "a_softplus_gated.json", gated), "a_softplus_gated");
  EXPECT_EQ(parse_config(gated, "c.json").name, "c");
  EXPECT_EQ(name("lssa", "a_softmax.json", R"({"name": "b"})"), "b");
}

TEST(Config, SetParsesByType) {
  Config c =
      parse_config(R"({"name": "file", "eval": {"lengths": [5]}})", "x.json",
                   {"name=true", "seed=7", "model.context=2e3", "model.layers=2", "model.layers=4", "batch.tokens=4000",
                    "optimizer.lr=1e-3", "attention.gate.bias=false", "data.train=a.bin,b_*.bin", "data.val=v",
                    "eval.lengths=1000,2000", "attention.scale=-0.5", "generate.prompt=a=b, c", "init="});
  EXPECT_EQ(changes(c), (Changes{{"name", "\"true\""},
                                 {"seed", "7"},
                                 {"model.context", "2000"},
                                 {"model.layers", "4"},
                                 {"batch.tokens", "4000"},
                                 {"optimizer.lr", "0.001"},
                                 {"attention.gate.bias", "false"},
                                 {"data.train", "[\"a.bin\",\"b_*.bin\"]"},
                                 {"data.val", "[\"v\"]"},
                                 {"eval.lengths", "[1000,2000]"},
                                 {"attention.scale", "-0.5"},
                                 {"generate.prompt", "\"a=b, c\""}}));
  EXPECT_EQ(parse_config("{}", "", {"attention.scale=ssmax"}).attention.scale, Scale::ssmax);
  EXPECT_EQ(parse_config("{}", "", {"seed=18446744073709551615"}).seed, 18446744073709551615u);
  EXPECT_EQ(parse_config(R"({"data": {"val": "v"}})", "", {"data.val="}).data.val.size(), 0u);
  Config json = parse_config("{}", "", {"eval.lengths=[5, 6]", R"(data.val=["a,b", "[c]"])"});
  EXPECT_EQ(json.eval.lengths, (std::vector<int>{5, 6}));
  EXPECT_EQ(json.data.val, (std::vector<std::string>{"a,b", "[c]"}));
  EXPECT_EQ(parse_config("{}", "", {"data.val=[ab]*"}).data.val, (std::vector<std::string>{"[ab]*"}));
}

TEST(Config, LayersSayWhatTheirsIs) {
  Config c =
      parse_config("{}", "",
                   {R"(attention.layers=[{}, {"kind": "lssar", "window": 0, "gated": false}, {"rotated": false}, )"
                    R"({"window": 100, "rotated": true}])",
                    "attention.sink=one", "attention.window=64", "attention.sink_tokens=1",
                    "attention.gate.activation=silu", "model.layers=6", "eval.window=256", "eval.sink_tokens=4"});
  auto is = [&](int l, int length, Kind kind, int window, int sink_tokens, bool gated, bool rotated) {
    Config::Layer layer = c.layer(l, length);
    EXPECT_EQ(layer.attention.kind, kind) << l;
    EXPECT_EQ(layer.attention.sink, kind == Kind::softmax ? Sink::one : Sink::none) << l;
    EXPECT_EQ(layer.attention.window, window) << l;
    EXPECT_EQ(layer.attention.sink_tokens, sink_tokens) << l;
    EXPECT_EQ(layer.attention.gate.activation, gated ? GateActivation::silu : GateActivation::none) << l;
    EXPECT_EQ(layer.rotated, rotated) << l;
  };
  is(0, 1024, Kind::softmax, 64, 1, true, true);
  is(4, 1025, Kind::softmax, 256, 4, true, true);
  is(5, 1025, Kind::lssar, 0, 0, false, true);
  is(2, 1024, Kind::softmax, 64, 1, true, false);
  for (int length : {1024, 1025}) is(3, length, Kind::softmax, 100, 1, true, true);  // eval.window leaves it
  EXPECT_FALSE(parse_config("{}", "", {"model.position=none"}).layer(0).rotated);
  c = parse_config("{}", "",
                   {R"(attention.layers=[{"kind": "lssa", "bias": "alibi"}, {"bias": "none"}, {"window": 0}, )"
                    R"({"window": 9, "bias": "cable"}])",
                    "attention.bias=fox"});
  for (int l = 0; Bias bias : {Bias::alibi, Bias::none, Bias::fox, Bias::cable})
    EXPECT_EQ(c.layer(l++).attention.bias, bias);
}

// Comments and white space are no part of a kind's file's hash, in literals and directives they are.
TEST(Config, HashesOfKindsAreOfTheirCode) {
  const std::string code =
      "#define A b \\\n  c\n#if A\nint f(char x) { return x == '\"' ? 1 - -2 : g(\"a  //b\"); }\n#endif\n";
  const std::vector<std::string> same_code = {
      "// one\n  #define A b c // two\n#if   A\n\nint f( char x )\n{ return x=='\"'?1 - -2:g( \"a "
      " //b\" );/**/}\n#endif",
      "/*\n#*/" + code};
  for (const std::string& same : same_code) EXPECT_EQ(code_of(same), code_of(code));
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"a  //b", "a //b"}, {"- -", "--"}, {"int f", "intf"}, {"c\n#if A\n", "c\n#if A "}};
  for (auto& [from, to] : changes) {
    std::string other = code;
    other.replace(other.find(from), from.size(), to);
    EXPECT_NE(code_of(other), code_of(code)) << from;
  }
  EXPECT_EQ(code_of("a = R\"x(b  \" // )\" c)x\" ; // d"), "a=R\"x(b  \" // )\" c)x\";");
  for (const char* open : {"/* a", "\"a", "R\"(a", "R\"", "'", "#", "\\"}) EXPECT_NO_THROW(code_of(open));
}

// A kind alone is its name; other entries keep what they give, and nothing else. The last two are in the words of older
// checkpoints.
TEST(Config, EntriesOfLayersAreWrittenAsTheyAreRead) {
  for (auto& [set, text] : std::vector<std::pair<std::string, std::string>>{
           {"", "[]"},
           {"lssar,softmax", R"(["lssar","softmax"])"},
           {R"({"window": 256})", R"([{"window":256}])"},
           {R"([{"kind": "relu"}, {"_": 1, "bias": null}])", R"(["relu",{}])"},
           {R"([{"window": 8e0, "rotated": true, "kind": "lssa", "bias": "none"}])",
            R"([{"bias":"none","kind":"lssa","rotated":true,"window":8}])"},
           {"window256_lssar,full_unrotated,window,relu",
            R"([{"kind":"lssar","window":256},{"rotated":false,"window":0},{},"relu"])"},
           {R"(["joined_rotated","fox_ungated","separate"])",
            R"([{"documents":"joined"},{"bias":"fox","gated":false},{}])"}}) {
    Config c = parse_config("{}", "",
                            {"attention.layers=" + set, "attention.documents=separate", "attention.window=4",
                             "attention.gate.activation=silu"});
    EXPECT_EQ(value_text(config_row(c, "attention.layers")), text);
    EXPECT_EQ(config_text(parse_config(config_text(c), "")), config_text(c)) << set;
  }
}

TEST(Config, VariantsChangeOnlyWhatTheirRowSays) {
  const Changes lssa = {{"attention.qk_norm", "\"l2\""}, {"attention.scale", "\"logd_logn\""}};
  const Changes softplus = {{"attention.gate.activation", "\"softplus\""},
                            {"attention.gate.weight_init", "\"zero\""},
                            {"attention.gate.bias_init", "0.541324855"}};
  auto with = [](Changes a, const Changes& b) {
    a.insert(b.begin(), b.end());
    return a;
  };
  const std::map<std::string, Changes> expected = {
      {"softmax", {}},
      {"sigmoid_gated", {{"attention.gate.activation", "\"sigmoid\""}, {"attention.gate.bias", "false"}}},
      {"softplus_gated", softplus},
      {"two_sigmoid_gated",
       {{"attention.gate.activation", "\"two_sigmoid\""}, {"attention.gate.weight_init", "\"zero\""}}},
      {"lssa", with(lssa, {{"attention.kind", "\"lssa\""}})},
      {"lssar", with(lssa, {{"attention.kind", "\"lssar\""}})},
      {"lssar_softplus_gated", with(with(lssa, softplus), {{"attention.kind", "\"lssar\""}})},
      {"softmax_qknorm", lssa},
      {"ssmax", {{"attention.scale", "\"ssmax\""}}},
      {"alibi", {{"attention.bias", "\"alibi\""}, {"model.position", "\"none\""}}},
      {"fox", {{"attention.bias", "\"fox\""}, {"model.position", "\"none\""}}},
      {"cable", {{"attention.bias", "\"cable\""}, {"model.position", "\"none\""}}},
      {"softmax_sink", {{"attention.sink", "\"learned\""}}},
      {"relu", {{"attention.kind", "\"relu\""}}},
      {"threshold",
       {{"attention.qk_norm", "\"rms\""}, {"attention.kind", "\"threshold\""}, {"attention.output_norm", "\"rms\""}}}};
  for (const Variant& variant : variants()) {  // all others are a kind, named like it
    Changes kind = {{"attention.kind", format("\"%s\"", variant.name)}};
    kind["attention.variant"] = kind["attention.kind"];
    if (expected.contains(variant.name)) continue;
    EXPECT_EQ(changes(parse_config("{}", "", {format("attention.variant=%s", variant.name)})), kind);
  }
  for (auto& [name, change] : expected) {
    Changes whole = change;
    if (name != "softmax") whole["attention.variant"] = "\"" + name + "\"";
    EXPECT_EQ(changes(parse_config("{}", "", {"attention.variant=" + name})), whole) << name;
    EXPECT_EQ(changes(parse_config(R"({"attention": {"variant": ")" + name + "\"}}", "")), whole) << name;
  }
}

TEST(Config, KeysBesideAVariantOverrideIt) {
  Config c =
      parse_config(R"({"attention": {"kind": "lssa", "variant": "lssar_softplus_gated", "gate": {"bias_init": 2}}})",
                   "x.json", {"attention.qk_norm=rms"});
  EXPECT_EQ(c.attention.kind, Kind::lssa);
  EXPECT_EQ(c.attention.qk_norm, QkNorm::rms);
  EXPECT_EQ(c.attention.scale, Scale::logd_logn);
  EXPECT_EQ(c.attention.gate.bias_init, 2);
  EXPECT_EQ(c.attention.gate.weight_init, GateWeights::zero);
  EXPECT_TRUE(c.warnings.empty());
  // A variant from the command line cannot win over what the file spells out, and says so.
  c = parse_config(R"({"attention": {"kind": "softmax", "scale": "logd_logn"}})", "x.json",
                   {"attention.variant=lssar"});
  EXPECT_EQ(c.attention.kind, Kind::softmax);
  EXPECT_EQ(c.warnings,
            std::vector<std::string>{"config: attention.kind = \"softmax\" in the file wins over \"lssar\" of --set "
                                     "attention.variant=lssar  [x.json]"});
  // What the file spells out because its own variant means it goes with that variant, as over a run's config.json.
  for (const char* variant : {"softmax", "sigmoid", "softplus_gated", "lssa"}) {
    std::string set = std::string("attention.variant=") + variant;
    Config resolved =
        parse_config(config_text(parse_config("{}", "", {"attention.variant=lssar_softplus_gated"})), "x.json", {set});
    EXPECT_EQ(changes(resolved), changes(parse_config("{}", "", {set}))) << variant;
    EXPECT_TRUE(resolved.warnings.empty());
  }
}

TEST(Config, MicroBatchIsTheLargestThatFitsAndDivides) {
  auto micro = [](int64_t sequences, int ranks, int64_t fits) {
    Config c = parse_config("{}", "", {"model.context=8", "batch.tokens=" + std::to_string(8 * sequences)});
    resolve_batch(c, ranks, fits);
    EXPECT_EQ(c.origins.at("batch.micro"), "as many as fit, at most 64");
    return c.batch.micro;
  };
  EXPECT_EQ(micro(512, 1, 1000), 64);
  EXPECT_EQ(micro(512, 1, 63), 32);
  EXPECT_EQ(micro(60, 1, 1000), 60);
  EXPECT_EQ(micro(60, 4, 14), 5);
  EXPECT_EQ(micro(131, 1, 100), 1);  // a prime
  EXPECT_EQ(micro(7, 7, 100), 1);
  EXPECT_EQ(micro(8, 1, 0), 1);  // memory is checked elsewhere
  Config c = parse_config("{}", "x.json", {"batch.tokens=3072"});
  EXPECT_EQ(error_of([&] { resolve_batch(c, 2, 64); }),
            "user: config: batch.tokens = 3072 must be a multiple of context x ranks = 1024 x 2 = 2048; use 2048 or "
            "4096  [--set]");
}

TEST(Config, StepsFromTokens) {
  auto steps = [](const char* tokens) {
    return parse_config("{}", "", {"batch.tokens=2048", std::string("train.tokens=") + tokens}).train.steps;
  };
  EXPECT_EQ(steps("1"), 1);
  EXPECT_EQ(steps("2048"), 1);
  EXPECT_EQ(steps("2049"), 2);
  EXPECT_EQ(steps("2048e9"), 1000000000);
  EXPECT_EQ(error_of([&] { steps("2048000000001"); }),
            "user: config: train.tokens = 2048000000001 in steps of batch.tokens = 2048 would be 1000000001 steps, at "
            "most 1e9 are possible  [--set]");
}

TEST(Config, LongWarmupIsAWarning) {
  Config c = parse_config(R"({"train": {"steps": 699}})", "x.json");
  EXPECT_EQ(c.warnings,
            std::vector<std::string>{"config: optimizer.warmup_steps = 700 is longer than the run's 699 steps, so "
                                     "the learning rate never reaches optimizer.lr  [x.json]"});
  EXPECT_TRUE(parse_config(R"({"train": {"steps": 700}})", "x.json").warnings.empty());
}

TEST(Config, ResolvedJsonLoadsBackToTheSame) {
  Config c;
  std::vector<Sets> cases = {{},
                             {"train.tokens=1e9"},
                             {"attention.scale=0.1"},
                             {"attention.variant=lssar_softplus_gated"},
                             {"name=\"q\\u \xC3\xA4", "generate.prompt=line\nline\ttab\x01", "data.train=a b,\"c\""},
                             {"optimizer.lr=0.1234567890123456789", "optimizer.eps=1e-30", "model.rope_base=1e12",
                              "seed=18446744073709551615"},
                             {"model.head_dim=36", "model.channels=104", "eval.lengths=7,8", "batch.micro=8"},
                             {"eval.every=0", "eval.tokens=1"}};  // fewer than model.context, but never evaluated
  for (auto& sets : cases) {
    Config first = parse_config("{}", "", sets);
    Config second = config_from_json(config_json(first), "resolved.json");
    first.train.tokens = 0;  // became steps
    EXPECT_EQ(changes(first), changes(second));
    EXPECT_EQ(config_json(first), config_json(second));
    EXPECT_EQ(first.optimizer.lr, second.optimizer.lr);
    EXPECT_EQ(first.generate.prompt, second.generate.prompt);
  }
}

TEST(Config, ResolvedJsonOfSomeSections) {
  EXPECT_EQ(config_json(parse_config("{}", ""), {"log", "checkpoint"}).dump(2),
            "{\n  \"checkpoint\": {\n    \"every\": 5000,\n    \"minutes\": 30,\n    \"keep\": 2,\n    \"at_end\": "
            "true\n  },\n"
            "  \"log\": {\n    \"every\": 1,\n    \"groups_every\": 0\n  }\n}");
}

TEST(Config, PrintShowsValueAndOrigin) {
  Config c = parse_config(R"({"model": {"layers": 4}, "attention": {"variant": "lssar"}})", "x.json",
                          {"seed=5", "train.tokens=1e9"});
  std::string text = print_config(c);
  auto line = [&](const std::string& key) {
    size_t begin = text.find("\n" + key + " ") + 1, end = text.find('\n', begin);
    std::string found = text.substr(begin, end - begin), single;
    for (char x : found)  // columns come from the widest entry: one space will do
      if (x != ' ' || single.back() != ' ') single += x;
    return single;
  };
  EXPECT_EQ(line("model.layers"), "model.layers 4 x.json");
  EXPECT_EQ(line("model.heads"), "model.heads 12 default");
  EXPECT_EQ(line("seed"), "seed 5 --set");
  EXPECT_EQ(line("data.train"), "data.train [\"data/shards/fineweb10B/fineweb_train_*.bin\"] default");
  EXPECT_EQ(line("eval.tokens"), "eval.tokens 10485760 default; may change");
  EXPECT_EQ(line("attention.kind"), "attention.kind \"lssar\" variant lssar");
  EXPECT_EQ(line("model.head_dim"), "model.head_dim 64 channels / heads");
  EXPECT_EQ(line("train.steps"), "train.steps 1908 train.tokens / batch.tokens");
  EXPECT_EQ(line("precision"), "precision auto (bf16 on a GPU, fp32 on the CPU) default");
  auto column = [&](const std::string& word) { return text.find(word) - text.rfind('\n', text.find(word)); };
  EXPECT_EQ(column("x.json"), column("--set"));
  EXPECT_EQ(column("x.json"), column("variant lssar"));
  Config scratch;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<long>(config_rows(scratch).size()));
}

// scripts/sweep.py takes a run that differs in such keys alone for the same one.
TEST(Config, NoKeyThatTrainingDependsOnMayChange) {
  Config scratch;
  for (const ConfigRow& row : config_rows(scratch)) {
    std::string key = row.key, section = key.substr(0, key.find('.'));
    if (row.at_resume == AtResume::free) {
      EXPECT_TRUE(std::set<std::string>({"name", "threads", "eval", "checkpoint", "generate", "passkey", "task",
                                         "diagnostics", "log", "plan", "train.recompute", "train.zero_stage"})
                      .count(section == "train" ? key : section))
          << key;
    }
  }
}

TEST(Config, HelpNamesEveryKeyAndVariant) {
  Config c;
  std::string help = config_help();
  for (auto& row : config_rows(c)) expect_has(help, {"\n  " + std::string(row.key) + " "});
  expect_has(help, {"default as many as fit, at most 64; [1, 65535], or 0 for that default\n",
                    "seed                          seed of the initial weights, the data order and sampling\n"
                    "                                integer, default 1337; [0, 18446744073709551615]\n",
                    "\n\nVariants (attention.variant) and what they change",
                    "softmax1",  // the name by which attention.sink = one is known
                    "  sigmoid_gated                 gate.activation sigmoid, gate.bias false\n"});
}

TEST(Config, DidYouMean) {
  auto hint = [](const char* word) { return did_you_mean(word, {"--resume", "--generate", "--eval", "-h"}); };
  EXPECT_EQ(hint("--resum"), "; did you mean \"--resume\"?");
  EXPECT_EQ(hint("--reusme"), "; did you mean \"--resume\"?");
  EXPECT_EQ(hint("--geenrat"), "; did you mean \"--generate\"?");
  EXPECT_EQ(hint("--verbose"), "");
  EXPECT_EQ(hint(""), "");
  EXPECT_EQ(did_you_mean("lsas", {"lssa"}), "; did you mean \"lssa\"?");
  EXPECT_EQ(did_you_mean("lxxa", {"lssa"}), "");                              // short words must be nearer
  EXPECT_EQ(did_you_mean(std::string(65, 'x'), {std::string(64, 'x')}), "");  // the cost grows with both lengths
}

TEST(Config, TheShippedFilesLoad) {
  int files = 0;
  for (auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.is_directory()) continue;  // sweeps
    Config c = load_config(entry.path().string());
    EXPECT_TRUE(c.warnings.empty()) << entry.path();
    EXPECT_EQ(c.name, entry.path().stem().string());
    // A file holds only the settings that differ from the defaults.
    for (auto& [key, origin] : c.origins) {
      if (origin != entry.path().string()) continue;
      EXPECT_EQ(changes(c).count(key), 1u) << entry.path() << " " << key;
    }
    files++;
  }
  EXPECT_GE(files, 2);
}
