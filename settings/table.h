// THE configuration table. A row's type is the type of the Config member that it points to, its default that member's
// initialiser; everything else that concerns one key alone is in the row. Declarations shared by read.cpp, check.cpp
// and show.cpp follow.
#pragma once
#include <algorithm>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "settings/config.h"

// An enum, or another value with names. With `number`, a number may be given in place of a name: the field is then
// names.size().
struct EnumField {
  std::vector<const char*> names;
  std::function<size_t()> get;
  std::function<void(size_t)> set;
  double* number;
};

// A number that is an integer, in a double.
struct WholeNumber {
  double* value;
};

// When a key has an effect.
struct EffectiveWhen {
  const char* what;  // "attention.kind = \"lssar\""
  std::function<bool(const Config&)> met;
  bool or_a_flag = false;               // a flag, such as --lengths, may meet the condition if nothing is trained
  bool only_in_builds_with_it = false;  // of a kind that is a file: written only where it has an effect
};

// The effect of another value at --resume.
enum class AtResume {
  refused,
  compared,  // allowed if check_same_run() finds the same shards and learning rates, or if it matters at the start only
  free       // allowed: it is the same run, as its weights do not depend on the value
};

struct ConfigRow {
  const char* key;
  std::variant<int*, int64_t*, uint64_t*, double*, bool*, std::string*, std::vector<std::string>*, std::vector<int>*,
               std::vector<LayerEntry>*, WholeNumber, EnumField>
      value;
  const char* allowed;    // numbers: an interval as "[0, 1)"; else ""
  const char* automatic;  // nullptr, or the meaning of 0, "" or []: such a value is allowed as well
  const char* help;
  AtResume at_resume = AtResume::refused;
  // results do not depend on the value, or the named files are compared
  bool may_differ_between_ranks = false;
  const EffectiveWhen* effective_when = nullptr;  // nullptr: it always has an effect
};
std::vector<ConfigRow> config_rows(Config& config);
ConfigRow config_row(Config& config, const std::string& key);  // one of them
// Those of the kinds. check_parameter(): a user_error if a parameter's key, attention.NAME, or attention.NAME_init of a
// learned number, is one of others, or its default is outside its range.
std::vector<ConfigRow> rows_of_kinds(Config& config, std::vector<ConfigRow> others);
void check_parameter(const KindRow& kind, const ScoreKey& parameter, const std::vector<ConfigRow>& others,
                     const char* suffix = "");

// What a variant changes. The first one changes nothing.
struct Variant {
  const char* name;
  std::vector<Setting> changes;
};
const std::vector<Variant>& variants();
void check_kind_name(const KindRow& kind, const std::vector<Variant>& others);  // a user_error: others have it

// For std::visit over a row's value.
template <class... F> struct Overloaded : F... { using F::operator()...; };
template <class... F> Overloaded(F...) -> Overloaded<F...>;

std::vector<ConfigRow> rows_of_entry(LayerEntry& entry);  // the keys of an entry of attention.layers
std::string entry_text(const LayerEntry& entry);          // as JSON; "lssar" if it says nothing but a kind

constexpr double EXACT_INTEGERS = 9007199254740992.0;  // up to 2^53 a double is an exact integer

nlohmann::json value_json(const ConfigRow& row);
std::string value_text(const ConfigRow& row);  // value_json() as text: 12, "softmax", [1024,2048]
bool is_automatic(const ConfigRow& row);       // 0, "" or [], where that has a meaning
std::string allowed_text(const ConfigRow& row, const char* separator = " | ");  // "[0, 1)", "a | b | c", or ""
struct Interval {
  double low, high;
  bool low_open, high_open;
  bool contains(double x) const { return (low_open ? x > low : x >= low) && (high_open ? x < high : x <= high); }
};
Interval interval(const std::string& allowed);

// A user_error "config: TEXT  [SOURCE]".
[[noreturn]] __attribute__((format(printf, 2, 3))) void refuse(const std::string& source, const char* fmt, ...);

// Errors that are reported together, one line each.
class ErrorList {
 public:
  template <class F> void attempt(F f) {  // remembers the user_error of f()
    try {
      f();
    } catch (const UserError& error) {
      texts_.push_back(error.what());
    }
  }
  void report() const;  // a user_error if there are any

 private:
  std::vector<std::string> texts_;
};

Config plain_variant(const std::string& name);  // the defaults, with what this variant sets

// The text of C++ without comments, and with white space only where it means something: text with an equal one is the
// same program.
std::string code_of(std::string_view text);
// Fills in Config::kind_file; a user_error if it names other texts of the files than this build's.
void check_kind_files(Config& config);

// Values that follow from others, then the rules between keys. `config` is as it was read: origins name the keys that
// were given.
void complete_and_check(Config& config);
