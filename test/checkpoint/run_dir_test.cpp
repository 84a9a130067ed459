// The folder of a run: steps, locks, leftovers; and its metrics.jsonl.
#include "checkpoint/run_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>

#include "checkpoint/metrics.h"
#include "test/support/temp_dir.h"

namespace fs = std::filesystem;

// The C library's, unless a test lets it fail.
static int flock_error = 0;
extern "C" int flock(int descriptor, int operation) noexcept {
  if (flock_error == 0) return int(syscall(SYS_flock, descriptor, operation));
  errno = flock_error;
  return -1;
}

// ---- folders

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
    for (auto& entry : fs::directory_iterator(run_path)) found.push_back(entry.path().filename().string());
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
  // Only folders with exactly these names count.
  for (auto* name : {"step_3", "step_00000004x", "step_-0000005", "xstep_00000006", ".tmp_step_00000007",
                     "bad_step_00000008", "step_000000009", "step_99999999999999999999999", "step_"})
    fs::create_directory(run_path + "/" + name);
  write_text_file(run_path + "/step_00000099", "a file");
  EXPECT_EQ(steps(), (std::vector<int64_t>{100000000, 10, 2}));
  EXPECT_EQ(step_folders(run_path)[1].path, run_path + "/step_00000010");
}

TEST_F(Runs, FoldersThatWereSetAsideAreListedInOrder) {
  RunDir run("a", root);
  std::vector<std::string> aside(20), old(20);
  for (int i = 0; i < 20; i++) {  // created in another order; a file system's own order would not be right by chance
    int n = i * 7 % 20;
    fs::create_directory(run_path + "/" + (aside[n] = format("bad_step_%08d", n + 1)));
    fs::create_directories(run_path + "/" + (old[n] = format("old_steps_%02d", n + 2)) + "/step_00000001");
  }
  EXPECT_EQ(set_aside_folders(run_path), aside);
  EXPECT_EQ(old_folders(run_path), old);
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
  write_text_file(run.begin_step(5) + "/whole", "y");  // the process died and was started again
  run.publish_step(5);
  EXPECT_FALSE(fs::exists(run_path + "/step_00000005/half"));
  EXPECT_EQ(bytes_of(run_path + "/step_00000005/whole"), "y");
}

TEST_F(Runs, GoingBackKeepsLaterCheckpoints) {
  RunDir run("a", root);
  for (int64_t step : {10, 20, 30}) make_step(run, step);
  write_text_file(run.metrics_path(), "lines\n");
  EXPECT_EQ(run.put_away_after(30), "");
  EXPECT_EQ(run.put_away_after(10), run_path + "/old_steps");
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "metrics.jsonl", "old_steps", "step_00000010"}));
  EXPECT_EQ(bytes_of(run_path + "/old_steps/step_00000030/model.safetensors"), "x");
  EXPECT_EQ(bytes_of(run_path + "/old_steps/metrics.jsonl"), "lines\n");
  EXPECT_EQ(step_folders(run_path + "/old_steps").size(), 2u);  // it can be continued like a run
  fs::remove(run.metrics_path());
  make_step(run, 20);
  EXPECT_EQ(run.put_away_after(10), run_path + "/old_steps_2");
  EXPECT_EQ(steps(), std::vector<int64_t>{10});
}

TEST_F(Runs, LeftoversOfOtherProcessesAreRemovedAtTheNextStart) {
  fs::create_directories(run_path + "/.tmp_removed_step_00000012/in");
  write_file(run_path + "/.tmp_metrics.jsonl", "x");
  RunDir run("a", root);
  EXPECT_EQ(names(), std::vector<std::string>{".lock"});
}

TEST_F(Runs, LeftoversThatCannotBeRemovedStay) {
  {
    RunDir run("a", root);
    for (int64_t step : {1, 2, 3}) make_step(run, step);
  }
  fs::create_directories(run_path + "/.tmp_step_00000009/in");
  for (auto& path : {root, run_path, run_path + "/.lock"}) fs::permissions(path, fs::perms::all);
  for (auto* name : {"/step_00000001", "/step_00000002", "/.tmp_step_00000009"})
    fs::permissions(run_path + name, fs::perms(0555));
  without_root([&] {
    testing::internal::CaptureStderr();
    EXPECT_EQ(error_of([&] { RunDir("a", root).keep_newest(1); }), "");
    expect_has(testing::internal::GetCapturedStderr(),
               {"warning: cannot remove " + run_path + "/.tmp_step_00000009: Permission denied"});
    EXPECT_EQ(steps(), std::vector<int64_t>{3});
  });
  for (auto& name : names()) fs::permissions(run_path + "/" + name, fs::perms::owner_all);
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

TEST_F(Runs, KeepNewestLeavesWhatOthersMadeOrRead) {
  std::optional<RunDir> run(std::in_place, "a", root);
  for (int64_t step : {3, 4}) make_step(*run, step);
  run.reset();
  run.emplace("a", root);
  make_step(*run, 5);
  for (auto* name : {"/step_00000001", "/step_00900000"}) fs::create_directory(run_path + name);
  File lock;
  ASSERT_TRUE(lock_step(run_path + "/step_00000004", LOCK_SH, lock));
  testing::internal::CaptureStderr();
  run->keep_newest(1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: " + run_path + "/step_00900000 is not a checkpoint of this training; it was not removed\n" +
                "warning: " + run_path + "/step_00000001 is not a checkpoint of this training; it was not removed\n");
  EXPECT_EQ(steps(), (std::vector<int64_t>{900000, 5, 4, 1}));
  lock = File();
  testing::internal::CaptureStderr();
  run->keep_newest(1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(steps(), (std::vector<int64_t>{900000, 5, 1}));
}

TEST_F(Runs, FreshTrainingNeedsOverwriteIfThereAreCheckpoints) {
  RunDir run("a", root);
  write_text_file(run.metrics_path(), "{}\n");
  write_text_file(run_path + "/picture.png", "kept");
  run.start_fresh(false);  // no checkpoints: nothing is lost
  EXPECT_EQ(names(), (std::vector<std::string>{".lock", "old_metrics.jsonl", "picture.png"}));
  EXPECT_EQ(bytes_of(run_path + "/old_metrics.jsonl"), "{}\n");
  for (auto* name : {"/old_steps_notes/step_00000001", "/old_steps_", "/old_steps_3"})  // a user's own
    fs::create_directories(run_path + name);
  std::vector<std::string> kept = {".lock",       "old_metrics.jsonl", "old_steps_",
                                   "old_steps_3", "old_steps_notes",   "picture.png"};
  for (auto* name : {"/bad_step_00000008", "/old_steps_2"}) {
    fs::create_directories(run_path + name + "/step_00000001");
    EXPECT_EQ(error_of([&] {
                run.start_fresh(false);
              }).rfind("user: runs: " + run_path + " already has checkpoints in " + (name + 1) + "; replace", 0),
              0u);
    run.start_fresh(true);
    EXPECT_EQ(names(), kept);
  }
  make_step(run, 20);
  make_step(run, 10);
  write_text_file(run.metrics_path(), "{}\n");
  EXPECT_EQ(error_of([&] { run.start_fresh(false); }),
            "user: runs: " + run_path +
                " already has checkpoints up to step 20; continue it with --resume, replace it with "
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
        format("user: runs: another process, pid %d, is writing to %s (it holds %s/.lock); wait for it or stop it, "
               "or choose another name (--set name=...)",
               getpid(), run_path.c_str(), run_path.c_str()));
    EXPECT_EQ(error_of([&] { RunDir other("b", root); }), "");
    // The refused process has not changed the text of the lock.
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
  expect_has(open_again(), {format("another process, pid %d,", child)});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(open_again(), "");
  close(ready[0]);
  close(ready[1]);
}

TEST_F(Runs, AFileSystemWithoutLocksIsAWarningAndOtherErrorsEnd) {
  testing::internal::CaptureStderr();
  flock_error = ENOLCK;
  EXPECT_EQ(error_of([&] { RunDir run("a", root); }), "");
  expect_has(testing::internal::GetCapturedStderr(), {"warning: ", run_path, "has no locks (No locks available)"});
  flock_error = EIO;
  EXPECT_EQ(error_of([&] { RunDir run("a", root); }),
            "failure: cannot lock " + run_path + "/.lock: Input/output error");
  flock_error = 0;
}

TEST_F(Runs, FoldersThatCannotBeUsed) {
  fs::create_directory(root);
  write_text_file(root + "/a", "a file");
  EXPECT_EQ(error_of([&] { RunDir run("a", root); }),
            "user: runs: " + run_path +
                " cannot be created, because a file of that name is in the way; remove it, or choose another name "
                "(--set name=...)");
  EXPECT_EQ(error_of([&] { RunDir run("b", root + "/a"); }).rfind("user: runs: ", 0), 0u);
  without_writing_to(root, [&] {
    EXPECT_EQ(error_of([&] { RunDir run("c", root); }), "user: runs: cannot create the folder " + root +
                                                            "/c: Permission denied; change that, or start in a folder "
                                                            "whose runs/ you may read and write");
  });
  { RunDir run("d", root); }
  fs::permissions(root + "/d", fs::perms(0555));
  without_root([&] {
    EXPECT_EQ(error_of([&] { RunDir run("d", root); }).rfind("user: runs: cannot read and write " + root, 0), 0u);
  });
}

// ---- metrics

// The lines with 0 for each time, which comes after the type: the test's own, in Unix seconds to the millisecond.
std::string timeless(const std::string& lines) {
  const std::regex time(R"re((\{"type":"\w+","time":)(\d+\.\d+))re");
  double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (std::sregex_iterator match(lines.begin(), lines.end(), time), end; match != end; ++match) {
    double found = std::stod((*match)[2]);
    EXPECT_NEAR(found, now - 30, 30);
    EXPECT_NEAR(found * 1e3, std::round(found * 1e3), 1e-3);  // twice the rounding of a double of this size
  }
  return std::regex_replace(lines, time, "$010");  // the first group, and 0
}

TEST(Metrics, LinesAreAsDocumented) {
  TempDir dir;
  MetricsLog log(dir / "m");
  log.write("start",
            {{"command", "./train \"x\"\n"}, {"config", {{"name", "a\nb  c"}, {"eval", {{"lengths", {1, 2}}}}}}});
  log.write("train", {{"step", 3}, {"loss", 0.1}, {"tokens_per_s", 1e6 / 3}, {"mfu", NAN}, {"grad_norm", INFINITY}});
  EXPECT_EQ(
      timeless(bytes_of(dir / "m")),
      R"({"type":"start","time":0,"command":"./train \"x\"\n","config":)"
      R"({"name":"a\nb  c","eval":{"lengths":[1,2]}}})"
      "\n"
      R"({"type":"train","time":0,"step":3,"loss":0.1,"tokens_per_s":333333.3333333333,"mfu":null,"grad_norm":null})"
      "\n");
}

TEST(Metrics, AppendsAfterDroppingATornLine) {
  TempDir dir;
  auto after = [&](const std::string& before) {
    write_text_file(dir / "m", before);
    MetricsLog(dir / "m").write("skip", {{"step", 1}, {"reason", "x"}, {"skipped", 2}});
    return timeless(bytes_of(dir / "m"));
  };
  const std::string line = "{\"type\":\"skip\",\"time\":0,\"step\":1,\"reason\":\"x\",\"skipped\":2}\n";
  EXPECT_EQ(after("{\"a\":1}\n"), "{\"a\":1}\n" + line);
  EXPECT_EQ(after("{\"a\":1}\n{\"b\""), "{\"a\":1}\n" + line);
  EXPECT_EQ(after("{\"b\""), line);
  EXPECT_EQ(after(""), line);
}

TEST(Metrics, ALostLineSaysItsStep) {
  TempDir dir;
  MetricsLog log(dir / "m");
  without_space([&] {
    for (int64_t step : {0, 7}) try {
        log.write("x", step ? nlohmann::ordered_json{{"step", step}} : nlohmann::ordered_json{{"commit", "c"}});
        ADD_FAILURE();
      } catch (const LostLine& error) {
        EXPECT_EQ(error.step, step);
        EXPECT_EQ(error.what(), "cannot write " + (dir / "m") + ": File too large");
      }
  });
}

TEST(Metrics, WithoutAFileNothingHappens) {
  MetricsLog log;
  EXPECT_EQ(error_of([&] { log.write("skip", {{"step", 1}}); }), "");
}

TEST(RewindMetrics, DropsLinesThatWillBeWrittenAgain) {
  TempDir dir;
  std::string path = dir / "m";
  const std::string start = "{\"type\":\"start\"}\n", eval = "{\"type\":\"eval\",\"step\":30,\"length\":8}\n",
                    odd =
                        "not JSON\n[1]\n{\"step\":9}\n{\"type\":7,\"step\":9}\n{\"type\":\"train\",\"step\":\"99\"}\n";
  auto line = [](const char* type, int step, int length = 0) {
    return format("{\"type\":\"%s\",\"step\":%d,\"length\":%d}\n", type, step, length);
  };
  std::string kept = start + line("train", 19) + line("train", 20) + line("val", 20, 8) + line("val", 20, 16) + odd;
  write_file(path, kept + line("train", 21) + line("skip", 21) + eval + line("val", 25, 8) + "{\"type\":\"tr");
  testing::internal::CaptureStderr();
  rewind_metrics(path, 20);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: " + path + ": line 6 is damaged and is ignored\nwarning: " + path +
                " has no lines of the training steps 1 to 18; they stay missing\n");
  EXPECT_EQ(bytes_of(path), kept + eval);
  rewind_metrics(path, 20);
  EXPECT_EQ(bytes_of(path), kept + eval);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator()), 1);
  rewind_metrics(dir / "absent", 3);
  EXPECT_EQ(bytes_of(dir / "absent"), "");
}

TEST(RewindMetrics, NamesTheStepsWithoutALine) {
  TempDir dir;
  auto warning = [&](const std::vector<int>& steps, int64_t step) {
    std::string lines;
    for (int n : steps) lines += format("{\"type\":\"train\",\"step\":%d}\n", n);
    write_file(dir / "m", lines);
    testing::internal::CaptureStderr();
    rewind_metrics(dir / "m", step);
    std::string text = testing::internal::GetCapturedStderr();
    return text.substr(std::min(text.size(), text.find(" the training steps ") + 20));
  };
  EXPECT_EQ(warning({1, 2, 2, 3, 4, 5}, 3), "");
  EXPECT_EQ(warning({}, 3), "1 to 3; they stay missing\n");
  EXPECT_EQ(warning({1, 2}, 3), "3 to 3; they stay missing\n");
  EXPECT_EQ(warning({1, 6, 7, 9}, 9), "2 to 5, and of later ones; they stay missing\n");
  EXPECT_EQ(warning({1, 2}, 0), "");
}

TEST(RewindMetrics, LinesOfCheckpointsStay) {
  TempDir dir;
  auto line = [](const std::string& weights, const char* id = "") {
    return format("{\"type\":\"task\",\"step\":9,\"id\":\"%s\",\"weights\":%s}\n", id, weights.c_str());
  };
  std::string older = line("\"runs/a/step_00000009\""), checkpoint = line("{\"run\":\"a\",\"xxh64\":\"0\"}", "x");
  write_file(dir / "m", line("\"runs/step_size_3\"") + older + line("{\"run\":\"a\"}", "y") + checkpoint +
                            line("\"runs/step_3/a\""));
  EXPECT_EQ(evaluated_ids(dir / "m", 9), (std::set<std::string>{"", "y"}));
  EXPECT_EQ(evaluated_ids(dir / "m", 8), std::set<std::string>{});
  EXPECT_EQ(evaluated_ids(dir / "none", 9), std::set<std::string>{});
  rewind_metrics(dir / "m", 0);
  EXPECT_EQ(bytes_of(dir / "m"), older + checkpoint);
}

TEST(RewindMetrics, DeepJsonIsADamagedLine) {
  TempDir dir;
  std::string deep = std::string(100000, '[') + std::string(100000, ']') + "\n";
  write_file(dir / "m", deep);
  testing::internal::CaptureStderr();
  rewind_metrics(dir / "m", 0);
  expect_has(testing::internal::GetCapturedStderr(), {"line 1 is damaged"});
  EXPECT_EQ(bytes_of(dir / "m"), deep);
}
