// MatmulChoices: which algorithm is found for which shape, after lines were read and choices made.
#include "kernels/matmul_choices.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "test/support/temp_dir.h"

static std::string found(const MatmulChoices& choices, const std::string& shape) {
  const std::string* algorithm = choices.find(shape);
  return algorithm ? *algorithm : "none";
}

TEST(MatmulChoices, FindsThoseOfItsDeviceOnly) {
  MatmulChoices choices("card\t12");
  MatmulChoices::Taken taken = choices.take(
      "card\t12\tm1\tfast\t2026-03-01\ncard\t12\tm2\tslow\t2026-01-05\n"
      "card\t13\tm3\tother\t2020-01-01\ncard 2\t12\tm1\tother\t2020-01-01\n");
  EXPECT_EQ(taken.count, 2);
  EXPECT_EQ(taken.oldest, "2026-01-05");
  EXPECT_EQ(found(choices, "m1"), "fast");
  EXPECT_EQ(found(choices, "m2"), "slow");
  EXPECT_EQ(found(choices, "m3"), "none");
  expect_has(choices.text(), {"card\t13\tm3\tother\t2020-01-01\n"});  // kept for that device
}

TEST(MatmulChoices, TakesTheLaterOfTwo) {
  MatmulChoices choices("card\t12");
  EXPECT_EQ(choices.take("card\t12\tm1\tfirst\t2026-03-01\ncard\t12\tm1\tsecond\t2026-03-02\n").count, 1);
  EXPECT_EQ(found(choices, "m1"), "second");
  choices.take("card\t12\tm1\tthird\t2026-03-01\n");
  EXPECT_EQ(found(choices, "m1"), "third");
  EXPECT_EQ(choices.text(), "card\t12\tm1\tthird\t2026-03-01\n");
}

TEST(MatmulChoices, SkipsLinesThatDoNotParse) {
  MatmulChoices choices("card\t12");
  std::string good = "card\t12\tm1\tfast\t2026-03-01\n";
  EXPECT_EQ(
      choices.take("no tabs\n\ncard\t12\tm1\t1\n\t\t\t\t\t\ncard\t12\tm2\t1\t\x1b[31m\n" + good + "card\t12\tm2").count,
      1);
  EXPECT_EQ(choices.text(), good);
}

TEST(MatmulChoices, TheVersionSaysThatSomethingWasTaken) {
  MatmulChoices choices("card\t12");
  int before = choices.version();
  choices.choose("m1", "fast");
  EXPECT_EQ(choices.version(), before);
  choices.take(choices.text());
  EXPECT_NE(choices.version(), before);
}

TEST(MatmulChoices, KeepsWhatWasMeasuredInTheFile) {
  TempDir folder;
  std::string path = folder / "matmul.txt";
  MatmulChoices first("card\t12");
  EXPECT_EQ(first.use_file(path, true).count, 0);
  first.choose("m1", "fast");
  first.choose("m2", "guessed", false);
  expect_has(first.text(), {"guessed"});
  MatmulChoices second("card\t12"), third("card\t12");
  EXPECT_EQ(second.use_file(path, true).count, 1);
  EXPECT_EQ(found(second, "m1") + found(second, "m2"), "fastnone");
  EXPECT_EQ(third.use_file(path, false).count, 0);
  EXPECT_EQ(found(third, "m1"), "none");
  std::string before = bytes_of(path);
  third.choose("m1", "faster");
  EXPECT_EQ(bytes_of(path).rfind(before, 0), 0u);  // appended
  EXPECT_EQ(second.use_file(path, true).count, 1);
  EXPECT_EQ(found(second, "m1"), "faster");
}

TEST(MatmulChoices, AFileThatIsCutShortOrNoFile) {
  TempDir folder;
  std::string path = folder / "matmul.txt";
  write_file(path, "card\t12\tm1\tfa");
  MatmulChoices first("card\t12"), second("card\t12"), third("card\t12");
  EXPECT_EQ(first.use_file(path, true).count, 0);
  first.choose("m2", "fast");
  EXPECT_EQ(second.use_file(path, true).count, 1);  // not glued to the line before
  EXPECT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(third.use_file(folder / "pipe", true).count, 0);  // opening a pipe would wait for a writer
  third.choose("m1", "fast");
}
