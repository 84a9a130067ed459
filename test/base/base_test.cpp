// Files, JSON, checksums, numbers as text, background jobs, signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/background.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/json.h"
#include "base/progress.h"
#include "base/signals.h"
#include "base/text.h"
#include "base/utf8.h"
#include "test/support/temp_dir.h"

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

TEST(Json, LinesWithinLimits) {
  TempDir dir;
  std::string long_one = "{\"a\":\"" + std::string(3 << 20, 'x') + "\"}\n",
              deep = std::string(33, '[') + std::string(33, ']');
  write_text_file(dir / "l", "{\"a\":1}\n\n" + deep + "\n[1]\n{\"a\":1,\"a\":2}\n" + long_one + "{\"torn\":1}");
  std::string text, kinds;
  for_each_json_line(dir / "l", [&](const std::string& whole, const nlohmann::json& line) {
    text += whole;
    kinds += line.empty() ? "-" : line["a"] == 1 ? "1" : "x";
  });
  EXPECT_EQ(kinds, "1----x");
  EXPECT_EQ(text + "{\"torn\":1}", read_text_file(dir / "l", "test", 4 << 20));
  for_each_json_line(dir / "none", [](const std::string&, const nlohmann::json&) { FAIL(); });
  EXPECT_TRUE(parsed_or_null(std::string(60000, '[') + std::string(60000, ']')).is_null());
}

TEST(Text, QuotesForAShell) {
  EXPECT_EQ(shell_quoted("runs/a_b-1.5,c:d@e%f+g=\xC3\xA4"), "runs/a_b-1.5,c:d@e%f+g=\xC3\xA4");
  EXPECT_EQ(shell_quoted(""), "''");
  for (const char* text : {"two words", "$HOME", "a;b", "*", "~/x", "a\nb", "\"", "(", "`x`", "#", "!"})
    EXPECT_EQ(shell_quoted(text), "'" + std::string(text) + "'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
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

TEST(Errors, AreNotObeyedByATerminal) {
  EXPECT_EQ(error_of([] { user_error("a\x1b]0;%s\x7f\nb", "\xC3\xA4\x07"); }), "user: a\\x1b]0;\xC3\xA4\\x07\\x7f\nb");
  EXPECT_EQ(error_of([] { failure("\r"); }), "failure: \\x0d");
  EXPECT_EQ(error_of([] { failure("\xC2\x9B\xC2\xA0\xC2"); }), "failure: \\xc2\\x9b\xC2\xA0\xC2");  // U+009B, U+00A0
  for (const char* text : {"\x1b", "\n", "a\x7f", "\xC2\x80", "\xC2\x9F"}) EXPECT_TRUE(has_control_characters(text));
  for (const char* text : {"", " ~", "\xC2\xA0", "\xC3\x80", "\xC2"}) EXPECT_FALSE(has_control_characters(text));
  testing::internal::CaptureStderr();
  warn("%s\x1b\n", "a");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "warning: a\\x1b\n\n");
}

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
  write_text_file(dir / "mark", "\xef\xbb\xbf\xef\xbb\xbf{}");
  EXPECT_EQ(read_utf8_file(dir / "mark", "test", 10), "\xef\xbb\xbf{}");
  write_text_file(dir / "wide", std::string("{\0}\0", 4));
  EXPECT_EQ(error_of([&] { read_utf8_file(dir / "wide", "test", 10); }),
            "user: test: the file is UTF-16LE text; convert it to UTF-8 (iconv -f UTF-16LE -t UTF-8)  [" +
                (dir / "wide") + "]");
  without_writing_to(dir.path, [&] {
    EXPECT_EQ(error_of([&] { write_text_file(dir / "new", "x"); }),
              "failure: cannot create " + (dir / "new") + ": Permission denied");
  });
}

TEST(Files, PipesAreNotWaitedFor) {
  TempDir dir;
  std::string pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (auto& path : {pipe, std::string("/dev/zero")}) {
    EXPECT_EQ(error_of([&] { read_text_file(path, "test", 9); }), "user: test: not a regular file  [" + path + "]");
    EXPECT_EQ(error_of([&] { File::open_to_append(path); }), "user: " + path + " is not a regular file; remove it");
  }
  EXPECT_EQ(read_text_file(pipe, "test", 9, Pipes::taken), "");  // no process writes to it
  EXPECT_EQ(error_of([&] { read_text_file("/dev/zero", "test", 9, Pipes::taken); }),
            "user: test: the file has more than 9 bytes  [/dev/zero]");
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

// ---- checksums

TEST(Checksum, PublishedValues) {
  EXPECT_EQ(checksum_text(""), "ef46db3751d8e999");
  EXPECT_EQ(checksum_text("a"), "d24ec4f1a98c6e5b");
  EXPECT_EQ(checksum_text("abc"), "44bc2cf5ad770999");
  EXPECT_EQ(checksum_text("xxhash"), "32dd38952c4bc720");
  EXPECT_EQ(checksum_text("Nobody inspects the spammish repetition"), "fbcea83c8a378bf1");
}

TEST(Checksum, DoesNotDependOnThePieces) {
  std::string text;
  for (int i = 0; i < 1000; i++) text += static_cast<char>(i * 7);
  std::mt19937 random(1);
  for (int i = 0; i < 200; i++) {
    Checksum sum;
    for (size_t at = 0; at < text.size();) {
      size_t count = std::min<size_t>(random() % 70, text.size() - at);
      sum.add(text.data() + at, count);
      at += count;
    }
    ASSERT_EQ(sum.text(), checksum_text(text));
  }
}

TEST(Checksum, OfAFile) {
  TempDir dir;
  std::string text(3'000'017, 'x');
  write_file(dir / "f", text);
  EXPECT_EQ(file_checksum(dir / "f"), checksum_text(text));
}

TEST(Checksum, SamplesOfALargeFile) {
  TempDir dir;
  std::string text(1'000'003, 'x');
  auto sampled = [&](const std::string& content) {
    write_file(dir / "f", content);
    return sampled_checksum(dir / "f");
  };
  std::string expected = sampled(text);
  for (size_t at : {size_t(0), size_t(4095), text.size() - 4096, text.size() - 1}) {
    std::string other = text;
    other[at] = 'y';
    EXPECT_NE(sampled(other), expected) << at;
  }
  for (size_t at = 0; at + 30000 < text.size(); at += 10000) {  // any change longer than a 64th of the file is found
    std::string other = text;
    std::fill_n(other.begin() + at, 20000, 'y');
    EXPECT_NE(sampled(other), expected) << at;
  }
  for (size_t size : {0, 10, 200000}) EXPECT_EQ(sampled(text.substr(0, size)), checksum_text(text.substr(0, size)));
}

// ---- texts

TEST(Text, Durations) {
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

TEST(Text, Counts) {
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

TEST(Text, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1.25 * (1 << 30)), "1.2 GiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.0 MiB");  // never 1024.0 KiB
  EXPECT_EQ(size_in_bytes("80GiB"), 80.0 * (1 << 30));
  EXPECT_EQ(size_in_bytes("1.5 KiB"), 1536);
  for (const char* other : {"", "80", "GiB", "80GB", "80 GiB ", "-1GiB", "1.2.3GiB", "1e3GiB", ".", "80gib"})
    EXPECT_EQ(size_in_bytes(other), 0) << other;
}

TEST(Progress, EtaFollowsTheLastSteps) {
  Eta eta;
  EXPECT_EQ(eta.seconds(10), 0);
  eta.add(1000);
  EXPECT_DOUBLE_EQ(eta.seconds(60), 60);
  for (int i = 0; i < 200; i++) eta.add(2000);
  EXPECT_NEAR(eta.seconds(60), 120, 0.1);
}

TEST(Progress, ProgressText) {
  EXPECT_EQ(progress_text("eval", 0, 10, 5), "eval [........................]   0%");
  EXPECT_EQ(progress_text("eval", 5, 10, 5), "eval [############............]  50% eta 5s");
  EXPECT_EQ(progress_text("eval", 10, 10, 5), "eval [########################] 100%");
  EXPECT_EQ(progress_text("eval", 12, 10, 5), "eval [########################] 100%");
  EXPECT_EQ(progress_text("eval", 0, 0, 5), "eval [########################] 100%");
}

TEST(Progress, ProgressBarIsForTerminalsOnly) {
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
    ProgressBar quiet("y", 100, out, 60);
    quiet.update(50);
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

// ---- background

TEST(Background, RethrowsInTheThreadThatWaits) {
  Background job;
  job.wait();  // nothing was started
  std::atomic<int> done = 0;
  job.start([&] { done++; });
  job.wait();
  EXPECT_EQ(done, 1);
  job.start([] { failure("disk full"); });
  EXPECT_EQ(error_of([&] { job.wait(); }), "failure: disk full");
  job.wait();  // thrown only once
  job.start([] { failure("disk full"); });
  EXPECT_EQ(error_of([&] {
              for (int i = 0; i < 10000; i++) {
                job.check();
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
              }
            }),
            "failure: disk full");
}

// ---- signals

// Sends this process signals one after another, as another process would, and waits until each was taken.
static void receive(const std::vector<int>& signals) {
  for (int signal : signals) {
    kill(getpid(), signal);
    for (sigset_t waiting; sigpending(&waiting) == 0 && sigismember(&waiting, signal) == 1;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Ends the process with 11 once `expected` holds after these signals; with 1 if that takes 10 seconds.
[[noreturn]] static void exit_after(const std::vector<int>& signals, bool (*expected)()) {
  watch_signals();
  receive(signals);
  for (int64_t end = milliseconds_now() + 10000; milliseconds_now() < end;) {
    if (expected()) _exit(11);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  _exit(1);
}

TEST(Signals, AreRememberedAndTheSecondEndsTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT((exit_after({SIGUSR1}, [] { return save_requested() && !save_requested(); })),
              testing::ExitedWithCode(11), "");
  EXPECT_EXIT((exit_after({SIGTERM}, [] { return stop_requested() && !save_requested(); })),
              testing::ExitedWithCode(11), "");
  EXPECT_EXIT(
      {
        watch_signals();
        receive({SIGINT});
        while (!stop_requested()) std::this_thread::yield();
        stop_by(SIGTERM);  // another rank's, which came later
        die_of(stop_signal());
      },
      testing::KilledBySignal(SIGINT), "");
  auto later = std::chrono::milliseconds(SAME_REQUEST_MS + 50);
  for (int last : {SIGINT, SIGTERM})
    EXPECT_EXIT(
        {
          watch_signals();
          receive({last == SIGINT ? SIGTERM : SIGINT});
          std::this_thread::sleep_for(later);
          receive({last});
          std::this_thread::sleep_for(std::chrono::seconds(10));
        },
        testing::KilledBySignal(last), "");
}

TEST(Signals, OneRequestMayArriveSeveralTimes) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT((exit_after({SIGTERM, SIGINT, SIGTERM, SIGINT, SIGTERM}, stop_requested)), testing::ExitedWithCode(11),
              "");
}

TEST(Signals, AreNotTakenByThreadsThatCompute) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  auto all_blocked = [] {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1})
      if (!sigismember(&mask, signal)) return false;
    return true;
  };
  EXPECT_EXIT(
      {
        watch_signals();
        bool main = all_blocked();
        bool other = false;
        std::thread([&] { other = all_blocked(); }).join();
        _exit(main && other ? 11 : 1);
      },
      testing::ExitedWithCode(11), "");
}
