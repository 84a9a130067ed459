// The keys of kinds that are files (attention/score.h): parameters, and which text of a file the weights belong to.
#include <deque>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text.h"
#include "settings/table.h"

namespace {

// What the rows of one file point to, and stays.
struct FileRows {
  std::string layers;
  std::vector<std::string> keys;
  Needs needs;
};

bool some_layer_is(const Config& c, const KindFile* file) {
  return c.some_layer([&](const Config::Layer& l) {
    const KindFile* own = kind_file(l.attention.kind);
    return own && (!file || own == file);
  });
}

std::deque<FileRows> make_rows() {
  std::deque<FileRows> all;
  for (const KindFile& file : kind_files()) {
    FileRows& rows = all.emplace_back();
    rows.layers = format("layers with attention.kind = \"%s\"", file.name);
    for (const ScoreKey& parameter : file.parameters) rows.keys.push_back(format("attention.%s", parameter.name));
    rows.needs = {rows.layers.c_str(), [&file](const Config& c) { return some_layer_is(c, &file); }, false, true};
  }
  return all;
}

// FILE:LINE of the first line with this text.
std::string place_of(const KindFile& file, const std::string& text) {
  std::string_view all = file.text;
  size_t at = std::min(all.find(text), all.size());
  return format("%s:%ld", file.path, long(1 + std::ranges::count(all.substr(0, at), '\n')));
}

std::string name_and_hash(const KindFile& file) { return std::string(file.name) + " " + checksum_text(file.text); }

}  // namespace

void check_parameter(const KindFile& file, const ScoreKey& parameter, const std::vector<ConfigRow>& others) {
  std::string key = format("attention.%s", parameter.name), place = place_of(file, format("\"%s\"", parameter.name));
  for (const ConfigRow& row : others)
    if ((row.key + std::string(".")).starts_with(key + "."))
      user_error("%s: the parameter \"%s\" would be the key %s, which there is already; give it another name",
                 place.c_str(), parameter.name, key.c_str());
  if (!interval(parameter.allowed).contains(parameter.initial))
    user_error("%s: the default %g of \"%s\" is not in its range %s; change one", place.c_str(), parameter.initial,
               parameter.name, parameter.allowed);
}

std::vector<ConfigRow> rows_of_files(Config& c, std::vector<ConfigRow> others) {
  static std::deque<FileRows> all = make_rows();
  static const Needs any = {"layers of a kind that is a file",
                            [](const Config& c) { return some_layer_is(c, nullptr); }, false, true};
  std::vector<ConfigRow> rows;
  for (size_t n = 0; n < all.size(); n++) {
    const KindFile& file = kind_files()[n];
    for (size_t p = 0; p < file.parameters.size(); p++) {
      const ScoreKey& parameter = file.parameters[p];
      check_parameter(file, parameter, others);
      rows.push_back({all[n].keys[p].c_str(), &c.attention.parameters[file.first_parameter + p], parameter.allowed,
                      nullptr, parameter.help, AtResume::refused, false, &all[n].needs});
      others.push_back(rows.back());
    }
  }
  if (!all.empty())
    rows.push_back({"attention.kind_file", &c.kind_file, "", "name and hash of each kind's file",
                    "filled in; another text of such a file than this build has is refused", AtResume::refused, false,
                    &any});
  return rows;
}

void check_kind_files(Config& c) {
  std::string now;
  for (const KindFile& file : kind_files()) {
    if (!some_layer_is(c, &file)) continue;
    std::string own = name_and_hash(file), begin = std::string(file.name) + " ";
    for (const std::string& given : split(c.kind_file, ','))
      if (given.starts_with(begin) && given != own)
        refuse(
            source_of(c, {"attention.kind_file"}),
            "attention.kind_file = \"%s\": this build has another text of that file, %s (\"%s\"); build with that of "
            "the run, which its checkpoints hold: make KINDS=CHECKPOINT/%s.cuh",
            given.c_str(), file.path, own.c_str(), file.name);
    append_item(now, own, ",");
  }
  if (c.kind_file != now) c.origins["attention.kind_file"] = "make KINDS";
  c.kind_file = now;
}
