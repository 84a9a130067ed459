// Learning-rate schedules, files, run folders, metrics and console texts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/json.h"
#include "checkpoint/log.h"
#include "checkpoint/run_dir.h"
#include "settings/schedule.h"
#include "test/support/error_of.h"
#include "test/support/temp_dir.h"

static std::string bytes_of(const std::string& path) { return read_text_file(path, "test", 1 << 20); }

// ---- schedule

static Config schedule(const std::string& name, int64_t steps, int64_t warmup, double final_fraction = 0,
                       double decay = 0.2) {
  Config c;
  c.optimizer.lr = 2;
  c.optimizer.schedule = name;
  c.optimizer.warmup_steps = warmup;
  c.optimizer.final_lr_fraction = final_fraction;
  c.optimizer.decay_fraction = decay;
  c.train.steps = steps;
  return c;
}

TEST(Schedule, WarmupRisesToLr) {
  for (auto* name : {"cosine", "linear", "wsd", "constant"}) {
    Config c = schedule(name, 100, 4);
    EXPECT_EQ(learning_rate(c, 0), 0.5) << name;
    EXPECT_EQ(learning_rate(c, 1), 1.0) << name;
    EXPECT_EQ(learning_rate(c, 3), 2.0) << name;
    EXPECT_EQ(learning_rate(c, 4), 2.0) << name;  // x = 0
    EXPECT_EQ(learning_rate(schedule(name, 100, 0), 0), 2.0) << name;
  }
}

TEST(Schedule, Cosine) {
  Config c = schedule("cosine", 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * (0.1 + 0.9 / 2));                           // x = 1/2
  EXPECT_NEAR(learning_rate(c, 35), 2 * (0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2), 1e-15);  // x = 1/4
  EXPECT_DOUBLE_EQ(learning_rate(c, 110), 0.2);
}

TEST(Schedule, Linear) {
  Config c = schedule("linear", 110, 10, 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(c, 60), 2 * 0.55);
  EXPECT_DOUBLE_EQ(learning_rate(c, 109), 2 * (1 - 0.9 * 0.99));
}

TEST(Schedule, WarmupStableDecay) {
  Config c = schedule("wsd", 100, 10, 0.5, 0.2);
  EXPECT_EQ(learning_rate(c, 80), 2);  // the last 20 steps decay
  EXPECT_DOUBLE_EQ(learning_rate(c, 81), 2 * (1 - 0.5 / 20));
  EXPECT_DOUBLE_EQ(learning_rate(c, 90), 2 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(c, 99), 2 * (1 - 0.5 * 19 / 20));
  EXPECT_EQ(learning_rate(schedule("wsd", 100, 10, 0, 0), 99), 2);  // no decay at all
}

TEST(Schedule, Constant) { EXPECT_EQ(learning_rate(schedule("constant", 100, 10, 0.1), 99), 2); }

TEST(Schedule, WarmupLongerThanTheRun) {
  for (auto* name : {"cosine", "linear", "wsd", "constant"}) {
    EXPECT_DOUBLE_EQ(learning_rate(schedule(name, 5, 10), 4), 1.0) << name;
    EXPECT_EQ(learning_rate(schedule(name, 5, 5), 4), 2.0) << name;
  }
}

// ---- json

TEST(Json, NumbersReadBackExactly) {
  for (double x : {0.1, 1.0 / 3, 6e-4, 1e-5, 9.999e-6, 1e15, 1e16, 123456789012345678.0, 5e-324, 1.7976931348623157e308,
                   0.1f + 0.0, 100.0})
    for (double sign : {1.0, -1.0}) EXPECT_EQ(std::strtod(json_number(sign * x).c_str(), nullptr), sign * x);
  EXPECT_EQ(json_number(6e-4), "0.0006");
  EXPECT_EQ(json_number(1e-8), "1e-08");
  EXPECT_EQ(json_number(10000), "10000");
  EXPECT_EQ(json_number(-0.0), "-0");
  EXPECT_EQ(json_number(NAN), "null");
  EXPECT_EQ(json_number(-INFINITY), "null");
}

TEST(Json, QuotesAndShortens) {
  EXPECT_EQ(json_quote("a\"b\\c\n\x01\xC3\xA4"), "\"a\\\"b\\\\c\\n\\u0001\xC3\xA4\"");
  EXPECT_EQ(json_quote("\xff"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(shortened("abcdefg", 6), "abcdef...");
  EXPECT_EQ(shortened("abc\xC3\xA4", 4), "abc...");  // not half a character
  EXPECT_TRUE(is_utf8("\xC3\xA4"));
  EXPECT_FALSE(is_utf8("\xC3"));
}

// ---- files

TEST(Files, ErrorsNameThePath) {
  TempDir dir;
  EXPECT_EQ(error_of([&] { write_text_file(dir / "no/file", "x"); }),
            "failure: cannot create " + (dir / "no/file") + ": No such file or directory");
  EXPECT_EQ(error_of([] { write_text_file("/dev/full", "x"); }),
            "failure: cannot write /dev/full: No space left on device");
  EXPECT_EQ(error_of([&] { File::open_to_append(dir.path); }), "failure: cannot open " + dir.path + ": Is a directory");
  EXPECT_EQ(error_of([&] { sync_path(dir / "none"); }),
            "failure: cannot open " + (dir / "none") + ": No such file or directory");
  EXPECT_EQ(error_of([&] { read_text_file(dir / "none", "test", 9); }),
            "user: test: cannot read the file: No such file or directory  [" + (dir / "none") + "]");
  write_text_file(dir / "ten", "0123456789");
  EXPECT_EQ(error_of([&] { read_text_file(dir / "ten", "test", 9); }),
            "user: test: the file has more than 9 bytes  [" + (dir / "ten") + "]");
  EXPECT_EQ(read_text_file(dir / "ten", "test", 10), "0123456789");
  without_root([&] {
    EXPECT_EQ(error_of([&] { write_text_file(dir / "new", "x"); }),
              "failure: cannot create " + (dir / "new") + ": Permission denied");
  });
}

TEST(Files, WriteReplacesAndAppendAppends) {
  TempDir dir;
  write_text_file(dir / "f", "a long first text");
  write_text_file(dir / "f", "short");
  File file = File::open_to_append(dir / "f");
  file.write("+more", 5);
  file.close();
  EXPECT_EQ(bytes_of(dir / "f"), "short+more");
}

// ---- run folders

struct Runs : testing::Test {
  TempDir dir;
  std::string root = dir / "runs";
  std::string run_path = root + "/a";
  void make_step(RunDir& run, int64_t step, const std::string& content = "x") {
    write_text_file(run.begin_step(step) + "/model.safetensors", content);
    run.publish_step(step);
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (auto& entry : std::filesystem::directory_iterator(run_path)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
  std::vector<int64_t> steps() {
    std::vector<int64_t> found;
    for (auto& folder : step_folders(run_path)) found.push_back(folder.step);
    return found;
  }
};

TEST_F(Runs, StepsAreListedNewestFirst) {
  EXPECT_TRUE(step_folders(run_path).empty());  // no folder yet
  RunDir run("a", root);
  for (int64_t step : {2, 100000000, 10}) make_step(run, step);
  // What is not exactly a step folder is none of ours.
  for (auto* name : {"step_3", "step_00000004x", "step_-0000005", "xstep_00000006", ".tmp_step_00000007",
                     "bad_step_00000008", "step_000000009", "step_99999999999999999999999", "step_"})
    std::filesystem::create_directory(run_path + "/" + name);
  write_text_file(run_path + "/step_00000099", "a file");
  EXPECT_EQ(steps(), (std::vector<int64_t>{100000000, 10, 2}));
  EXPECT_EQ(step_folders(run_path)[1].path, run_path + "/step_00000010");
}

TEST_F(Runs, StepFolderAppearsOnlyWhenPublished) {
  RunDir run("a", root);
  std::string folder = run.begin_step(1000);
  write_text_file(folder + "/model.safetensors", "first");
  write_text_file(folder + "/config.json", "{}");
  EXPECT_TRUE(steps().empty());
  EXPECT_EQ(run.publish_step(1000), run_path + "/step_00001000");
  EXPECT_EQ(steps(), std::vector<int64_t>{1000});
  EXPECT_EQ(bytes_of(run_path + "/step_00001000/model.safetensors"), "first");
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "step_00001000"}));
}

TEST_F(Runs, LeftoversOfAnInterruptedStepAreNotKept) {
  RunDir run("a", root);
  write_text_file(run.begin_step(5) + "/half", "x");
  write_text_file(run.begin_step(5) + "/whole", "y");  // the process died and came again
  run.publish_step(5);
  EXPECT_FALSE(std::filesystem::exists(run_path + "/step_00000005/half"));
  EXPECT_EQ(bytes_of(run_path + "/step_00000005/whole"), "y");
}

TEST_F(Runs, GoingBackKeepsWhatWasThere) {
  RunDir run("a", root);
  for (int64_t step : {10, 20, 30}) make_step(run, step);
  write_text_file(run.metrics_path(), "lines\n");
  EXPECT_EQ(run.put_away_after(30), "");
  EXPECT_EQ(run.put_away_after(10), run_path + "/old_steps");
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "metrics.jsonl", "old_steps", "step_00000010"}));
  EXPECT_EQ(bytes_of(run_path + "/old_steps/step_00000030/model.safetensors"), "x");
  EXPECT_EQ(bytes_of(run_path + "/old_steps/metrics.jsonl"), "lines\n");
  EXPECT_EQ(step_folders(run_path + "/old_steps").size(), 2u);  // it can be continued like a run
  std::filesystem::remove(run.metrics_path());
  make_step(run, 20);
  EXPECT_EQ(run.put_away_after(10), run_path + "/old_steps_2");
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
}

TEST_F(Runs, WhatCannotBeRemovedStays) {
  RunDir run("a", root);
  for (int64_t step : {1, 2, 3}) make_step(run, step);
  std::filesystem::create_directories(run_path + "/.tmp_step_00000009/in");
  std::filesystem::permissions(run_path, std::filesystem::perms::all);
  for (auto* name : {"/step_00000001", "/step_00000002", "/.tmp_step_00000009"})
    std::filesystem::permissions(run_path + name, std::filesystem::perms(0555));
  without_root([&] {
    testing::internal::CaptureStderr();
    EXPECT_EQ(error_of([&] { run.keep_newest(1), run.remove_leftovers(); }), "");
    std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("warning: cannot remove " + run_path + "/.tmp_step_00000009: Permission denied"), said.npos);
    EXPECT_EQ(steps(), std::vector<int64_t>{3});
  });
  for (auto& name : names()) std::filesystem::permissions(run_path + "/" + name, std::filesystem::perms::owner_all);
}

TEST_F(Runs, PublishingNothingFails) {
  RunDir run("a", root);
  EXPECT_EQ(error_of([&] { run.publish_step(3); }),
            "failure: cannot open " + run_path + "/.tmp_step_00000003: No such file or directory");
}

TEST_F(Runs, KeepNewest) {
  RunDir run("a", root);
  for (int64_t step : {1, 2, 3, 4}) make_step(run, step);
  run.keep_newest(9);
  EXPECT_EQ(steps(), (std::vector<int64_t>{4, 3, 2, 1}));
  run.keep_newest(2);
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "step_00000003", "step_00000004"}));
}

TEST_F(Runs, FreshTrainingNeedsOverwriteWhereCheckpointsAre) {
  RunDir run("a", root);
  write_text_file(run.metrics_path(), "{}\n");
  write_text_file(run_path + "/picture.png", "kept");
  std::filesystem::create_directory(run_path + "/.tmp_step_00000009");
  run.start_fresh(false);  // no checkpoints: nothing is lost
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "old_metrics.jsonl", "picture.png"}));
  EXPECT_EQ(bytes_of(run_path + "/old_metrics.jsonl"), "{}\n");
  for (auto* name : {"/old_steps_notes/step_00000001", "/old_steps_", "/old_steps_3"})  // a user's own
    std::filesystem::create_directories(run_path + name);
  std::vector<std::string> kept = {".lock",           "old_metrics.jsonl", "old_steps_", "old_steps_3",
                                   "old_steps_notes", "picture.png"};
  for (auto* name : {"/bad_step_00000008", "/old_steps_2"}) {
    std::filesystem::create_directories(run_path + name + "/step_00000001");
    EXPECT_EQ(error_of([&] { run.start_fresh(false); }).rfind("user: runs: " + run_path + " already has checkpoints in " +
                                                             (name + 1) + ": replace", 0), 0u);
    run.start_fresh(true);
    EXPECT_EQ(names(), kept);
  }
  make_step(run, 20);
  make_step(run, 10);
  write_text_file(run.metrics_path(), "{}\n");
  EXPECT_EQ(error_of([&] { run.start_fresh(false); }),
            "user: runs: " + run_path +
              " already has checkpoints up to step 20: continue it with --resume, replace it with "
              "--overwrite, or choose another name (--set name=...)");
  EXPECT_EQ(steps(), (std::vector<int64_t>{20, 10}));
  EXPECT_EQ(bytes_of(run.metrics_path()), "{}\n");
  run.start_fresh(true);
  EXPECT_EQ(names(), kept);
}

TEST_F(Runs, LockKeepsASecondProcessOut) {
  auto open_again = [&] { return error_of([&] { RunDir second("a", root); }); };
  {
    RunDir run("a", root);
    EXPECT_EQ(
      open_again(),
      format("user: runs: another process, pid %d, is writing to %s (it holds %s/.lock): wait for it or stop it, "
             "or choose another name (--set name=...)",
             getpid(), run_path.c_str(), run_path.c_str()));
    EXPECT_EQ(error_of([&] { RunDir other("b", root); }), "");
    // The refused one has not touched the text of the lock.
    EXPECT_EQ(bytes_of(run_path + "/.lock"), format("pid %d\n", getpid()));
  }
  EXPECT_EQ(open_again(), "");
  // The lock of a process that was killed is gone with it.
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    RunDir run("a", root);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char x;
  ASSERT_EQ(read(ready[0], &x, 1), 1);
  EXPECT_NE(open_again().find(format("another process, pid %d,", child)), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(open_again(), "");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(Runs, WhatStandsInTheWay) {
  std::filesystem::create_directory(root);
  write_text_file(root + "/a", "a file");
  EXPECT_EQ(error_of([&] { RunDir run("a", root); }),
            "user: runs: " + run_path +
              " cannot be created, a file of that name is in the way: remove it, or choose another name "
              "(--set name=...)");
  EXPECT_EQ(error_of([&] { RunDir run("b", root + "/a"); }).rfind("user: runs: ", 0), 0u);
  without_root([&] {
    EXPECT_EQ(error_of([&] { RunDir run("c", root); }),
              "user: runs: cannot create the folder " + root + "/c: Permission denied; change that, or start in a folder "
              "whose runs/ you may read and write");
  });
  { RunDir run("d", root); }
  std::filesystem::permissions(root + "/d", std::filesystem::perms(0555));
  without_root([&] {
    EXPECT_EQ(error_of([&] { RunDir run("d", root); }).rfind("user: runs: cannot read and write " + root, 0), 0u);
  });
}

// ---- metrics

TEST(Metrics, LinesAreAsDocumented) {
  TempDir dir;
  MetricsLog log(dir / "m");
  log.start("abc123", "./train \"x\"\n",
            "{\n  \"name\": \"a\\nb  c\",\n  \"eval\": {\n    \"lengths\": [1, 2]\n  }\n}\n", "CPU",
            {{"nccl", "2.1"}, {"cuda", "12"}});
  log.train({.step = 3,
             .steps = 10,
             .loss = 0.1,
             .grad_norm = 2,
             .lr = 6e-4,
             .tokens = 6144,
             .tokens_per_s = 1e6 / 3,
             .mfu = 0.5,
             .ms = 12.25});
  log.train({.step = 4,
             .steps = 10,
             .loss = NAN,
             .grad_norm = INFINITY,
             .lr = 0,
             .tokens = 8192,
             .tokens_per_s = 1,
             .mfu = NAN,
             .ms = 1});
  log.val(250, 1024, 3.25, 10485760);
  log.eval(1000, 2048, 3.5, 4096, 3.75, {1, NAN, 0.5});
  EXPECT_EQ(
    bytes_of(dir / "m"),
    R"({"type":"start","commit":"abc123","command":"./train \"x\"\n","config":)"
    R"({"name": "a\nb  c","eval": {"lengths": [1, 2]}},)"
    R"("device":"CPU","versions":{"nccl":"2.1","cuda":"12"}})"
    "\n"
    R"({"type":"train","step":3,"loss":0.1,"grad_norm":2,"lr":0.0006,"tokens":6144,)"
    R"("tokens_per_s":333333.3333333333,"mfu":0.5,"ms":12.25})"
    "\n"
    R"({"type":"train","step":4,"loss":null,"grad_norm":null,"lr":0,"tokens":8192,"tokens_per_s":1,"mfu":null,"ms":1})"
    "\n"
    R"({"type":"val","step":250,"length":1024,"loss":3.25,"tokens":10485760})"
    "\n"
    R"({"type":"eval","step":1000,"length":2048,"loss":3.5,"tokens":4096,"last_loss":3.75,"by_position":[1,null,0.5]})"
    "\n");
}

TEST(Metrics, AppendsAfterDroppingATornLine) {
  TempDir dir;
  auto after = [&](const std::string& before) {
    write_text_file(dir / "m", before);
    MetricsLog(dir / "m").val(1, 2, 3, 4);
    return bytes_of(dir / "m");
  };
  const std::string line = "{\"type\":\"val\",\"step\":1,\"length\":2,\"loss\":3,\"tokens\":4}\n";
  EXPECT_EQ(after("{\"a\":1}\n"), "{\"a\":1}\n" + line);
  EXPECT_EQ(after("{\"a\":1}\n{\"b\""), "{\"a\":1}\n" + line);
  EXPECT_EQ(after("{\"b\""), line);
  EXPECT_EQ(after(""), line);
}

TEST(Metrics, WhoWritesSaysWhatALostLineMeans) {
  MetricsLog log("/dev/full");
  log.failed = [](int64_t step, const std::string& error) { failure("step %ld: %s", step, error.c_str()); };
  std::string text = ": cannot write /dev/full: No space left on device";
  TrainReport report = {};
  report.step = 5;
  EXPECT_EQ(error_of([&] { log.train(report); }), "failure: step 5" + text);
  EXPECT_EQ(error_of([&] { log.val(6, 2, 3, 4); }), "failure: step 6" + text);
  EXPECT_EQ(error_of([&] { log.skip(7, "x", 1); }), "failure: step 7" + text);
}

TEST(Metrics, WithoutAFileNothingHappens) {
  MetricsLog log;
  EXPECT_EQ(error_of([&] { log.val(1, 2, 3, 4); }), "");
  EXPECT_EQ(error_of([] { MetricsLog("/dev/full").val(1, 2, 3, 4); }),
            "failure: cannot write /dev/full: No space left on device");
}

// ---- console

TEST(Console, LineIsAsDocumented) {
  TrainReport r{.step = 120,
                .steps = 18865,
                .loss = 6.03214,
                .grad_norm = 1.2345,
                .lr = 1.0285e-4,
                .tokens = 0,
                .tokens_per_s = 1759000,
                .mfu = 0.412,
                .ms = 298.4};
  EXPECT_EQ(console_line(r, 94 * 60),
            "step  120/18865 | loss 6.0321 | norm 1.23 | lr 1.03e-04 | 298 ms | 1.76M tok/s | mfu 41.2% | eta 1h34m");
  r.mfu = NAN;
  r.step = 18865;
  r.ms = 9.94;
  r.loss = NAN;
  EXPECT_EQ(console_line(r, 0),
            "step 18865/18865 | loss nan | norm 1.23 | lr 1.03e-04 | 9.9 ms | 1.76M tok/s | eta 0s");
}

TEST(Console, Durations) {
  EXPECT_EQ(duration_text(0.4), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m00s");
  EXPECT_EQ(duration_text(725), "12m05s");
  EXPECT_EQ(duration_text(3599.6), "1h00m");
  EXPECT_EQ(duration_text(5640), "1h34m");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600), "2d03h");
  EXPECT_EQ(duration_text(NAN), "?");
  EXPECT_EQ(duration_text(INFINITY), "?");
}

TEST(Console, Counts) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999.4), "999");
  EXPECT_EQ(count_text(999.6), "1.00K");
  EXPECT_EQ(count_text(9994), "9.99K");
  EXPECT_EQ(count_text(9996), "10.0K");
  EXPECT_EQ(count_text(99960), "100K");
  EXPECT_EQ(count_text(52400), "52.4K");
  EXPECT_EQ(count_text(999499), "999K");
  EXPECT_EQ(count_text(999501), "1.00M");
  EXPECT_EQ(count_text(1.759e6), "1.76M");
  EXPECT_EQ(count_text(124475904), "124M");
  EXPECT_EQ(count_text(1e10), "10.0G");
  EXPECT_EQ(count_text(NAN), "?");
}

TEST(Console, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1.25 * (1 << 30)), "1.2 GiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");  // never 1024.0 KiB
}

TEST(Console, EtaFollowsTheLastSteps) {
  Eta eta;
  EXPECT_EQ(eta.seconds(10), 0);
  eta.add(1000);
  EXPECT_DOUBLE_EQ(eta.seconds(60), 60);
  for (int i = 0; i < 200; i++) eta.add(2000);
  EXPECT_NEAR(eta.seconds(60), 120, 0.1);
}

TEST(Console, ProgressText) {
  EXPECT_EQ(progress_text("eval", 0, 10, 5), "eval [........................]   0%");
  EXPECT_EQ(progress_text("eval", 5, 10, 5), "eval [############............]  50% eta 5s");
  EXPECT_EQ(progress_text("eval", 10, 10, 5), "eval [########################] 100%");
  EXPECT_EQ(progress_text("eval", 12, 10, 5), "eval [########################] 100%");
  EXPECT_EQ(progress_text("eval", 0, 0, 5), "eval [########################] 100%");
}

TEST(Console, ProgressBarIsForTerminalsOnly) {
  TempDir dir;
  FILE* file = std::fopen((dir / "f").c_str(), "w");
  {
    ProgressBar bar("x", 2, file);
    bar.update(1);
  }
  std::fclose(file);
  EXPECT_EQ(bytes_of(dir / "f"), "");

  int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0 || grantpt(terminal) != 0 || unlockpt(terminal) != 0) GTEST_SKIP() << "no pseudo-terminals here";
  FILE* out = std::fopen(ptsname(terminal), "w");
  ASSERT_NE(out, nullptr);
  {
    ProgressBar bar("x", 100, out);
    for (int i = 1; i <= 50; i++) bar.update(i);  // drawn ten times a second at most
  }
  const std::string cleared = "\r\033[K";
  std::string shown;
  pollfd readable = {terminal, POLLIN, 0};
  while (!shown.ends_with(cleared) && poll(&readable, 1, 5000) == 1) {
    char chunk[256];
    ssize_t got = read(terminal, chunk, sizeof chunk);
    if (got <= 0) break;
    shown.append(chunk, static_cast<size_t>(got));
  }
  EXPECT_EQ(shown.rfind("\rx [........................]   1%", 0), 0u) << shown;
  EXPECT_TRUE(shown.ends_with(cleared)) << shown;
  EXPECT_LT(std::count(shown.begin(), shown.end(), '\r'), 40);
  std::fclose(out);
  close(terminal);
}
