// Checkpoints on the disk: the format, damage, which one is taken, and whether a run may continue from it.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/file.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/checksum.h"
#include "base/json.h"
#include "checkpoint/resume.h"
#include "checkpoint/safetensors.h"
#include "test/support/temp_dir.h"

using nlohmann::json;
namespace fs = std::filesystem;

// ---- folders

static Config small_config() {
  return parse_config(R"({"name": "a", "seed": 18446744073709551615, "batch": {"tokens": 2048, "micro": 2},
    "model": {"context": 16, "channels": 16, "heads": 2}, "optimizer": {"lr": 1e-7, "eps": 1.1e-9, "warmup_steps": 3},
    "train": {"steps": 100}})",
                      "test.json");
}

struct Checkpoints : testing::Test {
  TempDir dir;
  std::string root = dir / "runs", run_path = root + "/a";
  RunDir run{"a", root};
  std::vector<float> values;

  Checkpoints() {
    for (int i = 0; i < 60; i++) values.push_back(std::ldexp(std::sin(float(i)), i % 40 - 20));
  }
  CheckpointContent content(int64_t step) {
    CheckpointContent c;
    c.model = {{"wte.weight", {4, 3}, values.data(), 5}, {"ln_f.bias", {7}, values.data() + 20, 7}};
    c.optimizer = {{"m.ln_f.bias", {7}, values.data() + 30, 7}, {"v.ln_f.bias", {7}, values.data() + 40, 7}};
    c.config = "{\"model_type\": \"plusgpt\"}\n";
    c.modelling = "class Model: pass\n";
    c.state.step = step;
    c.state.updates = step - 7;
    c.state.tokens = step * 2048;
    c.state.next_window = step * 128;
    c.state.windows = 59;
    c.state.train = {{"a.bin", 660, "0a"}, {"\xC3\xA4 \".bin", 300, "0b"}};
    c.state.val = {{"val.bin", 800, "0c"}};
    c.state.spikes = {{0.1, 1.0f / 3, 5e-324, 3e300}, {1.5, 2}, 7};
    c.state.matmul_choices = "GPU\t1\t2\n";
    c.state.products = "a library";
    c.state.config = small_config();
    c.state.others = {{"vocab.json", "{}"}};
    return c;
  }
  std::string write(int64_t step) { return write_checkpoint(run, content(step)); }
  std::string damage(const std::string& folder) {
    Checkpoint checkpoint;
    return read_checkpoint(folder, true, &checkpoint);
  }
  // A state.json with any content, under a correct checksum.
  void write_state(const std::string& folder, const json& root) {
    std::string begin = root.dump();
    begin.pop_back();
    write_file(folder + "/state.json", begin + ",\n \"xxh64\": \"" + checksum_text(begin) + "\"\n}\n");
  }
  json state_of(const std::string& folder) {
    json root = json::parse(bytes_of(folder + "/state.json"));
    root.erase("xxh64");
    return root;
  }
};

TEST_F(Checkpoints, EverythingReadsBack) {
  std::string folder = write(20);
  EXPECT_EQ(folder, run_path + "/step_00000020");
  Checkpoint read;
  ASSERT_EQ(read_checkpoint(folder, true, &read), "");
  RunState expected = content(20).state, &found = read.state;
  EXPECT_EQ(read.path, folder);
  EXPECT_EQ(found.step, expected.step);
  EXPECT_EQ(found.updates, 13);
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.next_window, expected.next_window);
  EXPECT_EQ(found.windows, expected.windows);
  EXPECT_EQ(found.train, expected.train);
  EXPECT_EQ(found.val, expected.val);
  EXPECT_EQ(found.spikes.loss, expected.spikes.loss);
  EXPECT_EQ(found.spikes.grad_norm, expected.spikes.grad_norm);
  EXPECT_EQ(found.spikes.skipped, 7);
  EXPECT_EQ(found.matmul_choices, expected.matmul_choices);
  EXPECT_EQ(found.products, expected.products);
  EXPECT_EQ(config_text(found.config), config_text(expected.config));  // a 64-bit seed and small numbers included

  SafetensorsReader model(folder + "/model.safetensors"), optimizer(folder + "/optimizer.safetensors");
  float rows[12], bias[7];
  model.read(*model.find("wte.weight"), 0, 12, rows);
  for (int i = 0; i < 12; i++) EXPECT_EQ(rows[i], values[i / 3 * 5 + i % 3]);  // the gaps between rows are left out
  optimizer.read(*optimizer.find("v.ln_f.bias"), 0, 7, bias);
  EXPECT_EQ(bias[6], values[46]);
  EXPECT_EQ(bytes_of(folder + "/config.json"), content(20).config);
  json files = state_of(folder)["files"];
  EXPECT_EQ(files.size(), 5u);
  for (auto& [name, entry] : files.items()) EXPECT_EQ(entry["xxh64"], file_checksum(folder + "/" + name));
}

TEST_F(Checkpoints, OlderProgramsCountedNoUpdates) {
  std::string folder = write(20);
  json root = state_of(folder);
  root.erase("updates");
  write_state(folder, root);
  Checkpoint read;
  ASSERT_EQ(read_checkpoint(folder, true, &read), "");
  EXPECT_FALSE(read.state.updates);
  CheckpointContent later = content(30);  // it stays such a run
  later.state.updates = read.state.updates;
  ASSERT_EQ(read_checkpoint(write_checkpoint(run, later), true, &read), "");
  EXPECT_FALSE(read.state.updates);
}

TEST_F(Checkpoints, EveryBitCounts) {
  std::string folder = write(20);
  std::mt19937 random(1);
  for (auto* name : {"model.safetensors", "optimizer.safetensors", "config.json", "state.json"}) {
    std::string path = folder + "/" + name, good = bytes_of(path);
    for (size_t i = 0; i < good.size(); i++) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1 << random() % 8);
      write_file(path, bad);
      ASSERT_TRUE(has(damage(folder), name)) << name << " byte " << i;
    }
    for (size_t size = 0; size < good.size(); size += 1 + size / 20) {
      write_file(path, good.substr(0, size));
      ASSERT_TRUE(has(damage(folder), name)) << name << " of " << size << " bytes";
    }
    write_file(path, good + "x");
    EXPECT_TRUE(has(damage(folder), name));
    fs::remove(path);
    EXPECT_EQ(damage(folder), std::string(name) + " is missing");
    fs::create_directory(path);
    EXPECT_TRUE(has(damage(folder), name));
    fs::remove(path);
    write_file(path, good);
    EXPECT_EQ(damage(folder), "");
  }
}

TEST_F(Checkpoints, ImpossibleStatesAreDamage) {
  std::string folder = write(20);
  json good = state_of(folder);
  write_state(folder, good);
  ASSERT_EQ(damage(folder), "");
  const std::string paths =
      "/format /step /tokens /data /data/next_window /data/windows /data/train /data/val /data/train/0/name "
      "/data/train/0/tokens /data/train/0/xxh64 /spikes /spikes/loss /spikes/skipped /matmul_choices /config /files "
      "/files/model.safetensors /files/model.safetensors/bytes /files/model.safetensors/xxh64";
  for (const std::string& path : split(paths, ' ')) {
    json::json_pointer at(path);
    std::vector<json> wrong = {
        nullptr, -1, 1.5, true, json::array({nullptr}), json::object({{"x", 1}}), std::numeric_limits<uint64_t>::max()};
    if (!good[at].is_string()) wrong.push_back("text");
    for (auto& value : wrong) {
      if (path == "/config" && value.is_object()) continue;  // the settings are checked themselves
      json bad = good;
      bad[at] = value;
      write_state(folder, bad);
      EXPECT_TRUE(has(damage(folder), "state.json")) << path << " " << value;
    }
    json bad = good;
    json& parent = bad[at.parent_pointer()];
    if (parent.is_object()) parent.erase(at.back());
    write_state(folder, bad);
    EXPECT_TRUE(has(damage(folder), "state.json")) << path;
  }
  json bad = good;
  bad["spikes"]["loss"] = std::vector<double>(SpikeHistory::WINDOW + 1, 1.0);
  write_state(folder, bad);
  EXPECT_TRUE(has(damage(folder), "\"loss\""));
  bad = good;
  bad["config"]["model"]["layer"] = 1;
  write_state(folder, bad);
  EXPECT_EQ(error_of([&] { damage(folder); }),
            "user: config: model.layer is unknown; did you mean \"model.layers\"?  [" + folder + "/state.json]");
  bad = good;
  bad["format"] = 1;
  write_state(folder, bad);
  EXPECT_EQ(error_of([&] { damage(folder); }),
            "user: checkpoint: state.json has format 1, but this program reads 2; use the version that wrote it");
}

TEST_F(Checkpoints, NothingMakesTheReaderCrash) {
  std::string folder = write(20), good = state_of(folder).dump(1);
  std::mt19937 random(1);
  for (int i = 0; i < 3000; i++) {
    std::string begin = good.substr(0, good.size() - 2);
    for (int edits = 1 + random() % 3; edits > 0; edits--)
      begin[random() % begin.size()] = "0123456789[]{},\":-.e\xff\0 "[random() % 24];
    if (random() % 4 == 0) begin.resize(random() % begin.size());
    write_file(folder + "/state.json", begin + ",\n \"xxh64\": \"" + checksum_text(begin) + "\"\n}\n");
    std::string error = error_of([&] { damage(folder); });
    EXPECT_TRUE(error.empty() || error.starts_with("user: checkpoint: ") || error.starts_with("user: config: "))
        << error;
  }
}

TEST_F(Checkpoints, TheNewestIntactIsTaken) {
  std::vector<SkippedCheckpoint> damaged;
  EXPECT_FALSE(newest_checkpoint(run_path, true, &damaged));
  EXPECT_FALSE(newest_checkpoint(dir / "absent", true, &damaged));
  for (int64_t step : {10, 20, 30, 40}) write(step);
  EXPECT_EQ(newest_checkpoint(run_path, true, &damaged)->state.step, 40);
  EXPECT_TRUE(damaged.empty());
  write_file(run_path + "/step_00000040/model.safetensors", "");
  fs::remove_all(run_path + "/step_00000030");
  fs::copy(run_path + "/step_00000010", run_path + "/step_00000030");  // complete, but of another step
  EXPECT_EQ(newest_checkpoint(run_path, true, &damaged)->state.step, 20);
  ASSERT_EQ(damaged.size(), 2u);
  EXPECT_TRUE(has(damaged[0].reason, "model.safetensors has 0 bytes")) << damaged[0].reason;
  EXPECT_EQ(damaged[1].reason, "state.json belongs to step 10");
}

TEST_F(Checkpoints, OneThatAnotherProcessRemovesIsPassedOver) {
  std::vector<SkippedCheckpoint> skipped;
  for (int64_t step : {10, 20}) write(step);
  std::string newest = run_path + "/step_00000020";
  File lock;
  ASSERT_TRUE(lock_step(newest, LOCK_EX, lock));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fs::remove_all(newest);
    lock = File();
  });
  auto found = newest_checkpoint(run_path, true, &skipped);
  other.join();
  EXPECT_EQ(found->path, run_path + "/step_00000010");
  EXPECT_TRUE(skipped.empty());
  EXPECT_FALSE(lock_step(found->path, LOCK_EX, lock));  // while it is read
  found->lock.reset();
  EXPECT_TRUE(lock_step(found->path, LOCK_EX, lock));
  Checkpoint gone;
  EXPECT_EQ(read_checkpoint(newest, true, &gone), REMOVED);
}

TEST_F(Checkpoints, FilesForTransformersMayChange) {
  std::string folder = write(20);
  for (auto& [name, text] :
       {std::pair{"modeling_plusgpt.py", content(20).modelling}, std::pair{"vocab.json", std::string("{}")}}) {
    std::string path = folder + "/" + name;
    EXPECT_EQ(bytes_of(path), text);
    write_file(path, "class Mine: pass\n");
    EXPECT_EQ(damage(folder), "");
    fs::remove(path);
    EXPECT_EQ(damage(folder), "");
  }
  CheckpointContent gpt2 = content(30);
  gpt2.state.others = {};
  gpt2.modelling = "";
  folder = write_checkpoint(run, gpt2);
  EXPECT_FALSE(fs::exists(folder + "/modeling_plusgpt.py"));
  EXPECT_EQ(state_of(folder)["files"].size(), 3u);
}

TEST_F(Checkpoints, UnreadableFilesAreNotDamage) {
  std::string folder = write(20);
  for (auto* name : {"state.json", "model.safetensors"}) {
    fs::permissions(folder + "/" + name, fs::perms::none);
    without_root([&] {
      std::string error = error_of([&] { damage(folder); });
      EXPECT_TRUE(has(error, "user: ") && has(error, "Permission denied") && has(error, folder)) << error;
    });
    fs::permissions(folder + "/" + name, fs::perms::owner_all);
  }
}

TEST_F(Checkpoints, AFailureLeavesNothingBehind) {
  write(20);
  write_text_file(run_path + "/step_00000030", "");  // in the way, which is found after everything is written
  EXPECT_ANY_THROW(write(30));
  fs::remove(run_path + "/step_00000030");
  EXPECT_FALSE(fs::exists(run_path + "/.tmp_step_00000030"));
  EXPECT_EQ(step_folders(run_path).size(), 1u);
  EXPECT_EQ(damage(run_path + "/step_00000020"), "");
}

TEST_F(Checkpoints, RunFoldersAreTidied) {
  for (int64_t step : {1, 2, 3, 9}) write(step);
  run.keep_newest(2);
  auto steps = step_folders(run_path);
  EXPECT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[1].step, 3);
  EXPECT_EQ(run.set_aside(9), run_path + "/bad_step_00000009");
  write(9);
  EXPECT_EQ(run.set_aside(9), run_path + "/bad_step_00000009_2");
  EXPECT_EQ(set_aside_folders(run_path), (std::vector<std::string>{"bad_step_00000009", "bad_step_00000009_2"}));
}

TEST_F(Checkpoints, PlacesToResumeFrom) {
  write(20);
  std::string old = fs::current_path();
  fs::current_path(dir.path);
  auto is = [](const ResumePoint& point, const std::string& run, int64_t step, const std::string& path, bool own) {
    EXPECT_EQ(point.run, run);
    EXPECT_EQ(point.step.step, step);
    EXPECT_EQ(point.step.path, path);
    EXPECT_EQ(point.own, own);
  };
  is(named_resume_point("latest", "a"), "runs/a", 0, "", true);
  is(named_resume_point("runs/a/", "a"), "runs/a", 0, "", true);
  is(named_resume_point(run_path, "a"), "runs/a", 0, "", true);
  is(named_resume_point(run_path, "b"), run_path, 0, "", false);
  is(named_resume_point("runs/a/step_00000020/", "a"), "runs/a", 20, "runs/a/step_00000020", true);
  is(named_resume_point("runs/a/step_00000020", "b"), "runs/a", 20, "runs/a/step_00000020", false);
  fs::copy("runs/a/step_00000020", "saved");
  is(named_resume_point("saved", "a"), ".", 0, "saved", false);
  EXPECT_TRUE(has(error_of([] { named_resume_point("saved/state.json", "a"); }), "is not a folder"));
  fs::current_path(old);
}

// ---- may the run continue?

struct SameRun : Checkpoints {
  Checkpoint checkpoint;
  Config now = small_config();
  std::vector<DataFile> train, val;
  SameRun() {
    checkpoint = {"runs/a/step_00000020", nullptr, "", content(20).state};
    train = checkpoint.state.train;
    val = checkpoint.state.val;
  }
  std::string error() {
    return error_of([&] { check_same_run(checkpoint, now, train, val); });
  }
  void began_with(const Config& config) { checkpoint.state.config = config; }
};

TEST_F(SameRun, AllowedChanges) {
  EXPECT_EQ(error(), "");
  now.name = "b";
  now.threads = 9;
  now.init = "x";
  now.eval.every = 3;
  now.eval.lengths = {4};
  now.checkpoint.keep = 99;
  now.generate.temperature = 0;
  now.log.every = 5;
  now.train.recompute = Recompute::block;
  now.batch.micro = 0;  // the checkpoint's
  val.clear();          // not evaluated now
  EXPECT_EQ(error(), "");
}

TEST_F(SameRun, RefusedChanges) {
  now.model.layers = 13;
  now.attention.gate.bias_init = 0.5;
  now.seed = 3;
  train[1].tokens = 301;
  val[0].xxh64 = "0d";
  val.push_back({"more.bin", 1, "0c"});
  EXPECT_EQ(error(),
            "user: command line: --resume: the run in runs/a/step_00000020 was begun with other settings; restore "
            "the old values, or begin another run (--set name=... without --resume), which cannot take these weights "
            "as init (h.12.ln_1.weight is missing there):"
            "\n  seed: 18446744073709551615 in the checkpoint, 3 now"
            "\n  model.layers: 12 in the checkpoint, 13 now"
            "\n  attention.gate.bias_init: 0 in the checkpoint, 0.5 now"
            "\n  data.train, shard 2: \"\xC3\xA4 \\\".bin\" of 300 tokens (0b) in the checkpoint, "
            "\"\xC3\xA4 \\\".bin\" of 301 tokens (0b) now"
            "\n  data.val, shard 1: \"val.bin\" of 800 tokens (0c) in the checkpoint, "
            "\"val.bin\" of 800 tokens (0d) now");
  val = checkpoint.state.val;
  val.push_back({"more.bin", 1, "0c"});
  EXPECT_TRUE(has(error(), "data.val, shard 2: no further shard in the checkpoint, \"more.bin\" of 1 tokens (0c) now"));
}

TEST_F(SameRun, StepsMayChangeIfTheScheduleSoFarStays) {
  for (auto& [schedule, steps, fine] :
       std::vector<std::tuple<Schedule, int64_t, bool>>{{Schedule::constant, 1000, true},
                                                        {Schedule::constant, 20, true},
                                                        {Schedule::cosine, 1000, false},
                                                        {Schedule::linear, 101, false},
                                                        {Schedule::wsd, 1000, true},
                                                        {Schedule::wsd, 26, true},
                                                        {Schedule::wsd, 22, false}}) {
    now = small_config();
    now.optimizer.schedule = schedule;
    began_with(now);
    now.train.steps = steps;
    EXPECT_EQ(error().empty(), fine) << int(schedule) << " " << steps << error();
    EXPECT_EQ(has(error(), format("train.steps: 100 in the checkpoint, %ld now", steps)), !fine);
  }
  now = small_config();
  now.optimizer.warmup_steps = 30;  // step 20 is in the warmup, which does not depend on the end
  began_with(now);
  now.train.steps = 1000;
  EXPECT_EQ(error(), "");
  now.optimizer.schedule = Schedule::constant;
  began_with(now);
  now.train.steps = 19;
  EXPECT_TRUE(has(error(), "train.steps = 19, but runs/a/step_00000020 has made 20 steps already")) << error();
}

TEST_F(SameRun, ThePositionFitsTheStep) {
  checkpoint.state.next_window++;
  EXPECT_TRUE(has(error(), "the data order: 2561 windows after 20 steps")) << error();
}
