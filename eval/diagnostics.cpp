#include "eval/diagnostics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/text.h"

using nlohmann::ordered_json;

// ---- the windows

EvalWindows diagnostics_windows(const Config& config, int separator, const std::vector<Shard>& shards, int length) {
  if (config.diagnostics.tokens < length)
    user_error(
        "config: diagnostics.tokens = %ld is less than one window of %d tokens; raise it, or name a shorter length%s",
        config.diagnostics.tokens, length, source_tag(source_of(config, {"diagnostics.tokens"})).c_str());
  return windows_of(config, separator, shards, "diagnostics.start", config.diagnostics.start, false, length,
                    config.diagnostics.tokens);
}

// ---- sums over the windows

constexpr int POSITIONS = 8, LARGEST = 3, SIZES = 1 << 16, SINK_ROWS = 64;
constexpr double SINK_SHARE = 0.3;

// Of a head; bins of reach follow. Counts: ALL rows, SEEN those of several keys, ROWS those of them whose weights are
// not all 0. TILES are those that pruning leaves of TILES_SEEN.
// clang-format off
enum {
  ALL, SEEN, ROWS, FIRST, FIRST_RAW, MASS, ENTROPY, ENTROPY_NORM, DISTANCE, PAIRS, ZEROS, DEGENERATE, SINKS,
  TILES, TILES_SEEN, SCORES, KEYS, REACH
};
// clang-format on

struct LayerSums {
  std::vector<double> heads;      // [H, REACH + bins]
  std::vector<double> positions;  // [2, POSITIONS]: zeros and pairs, by eighths of the window
  std::vector<double> gate;       // [H, GateStatistic::COUNT]; of a gate at the output each has all
  std::vector<double> survivors;  // [T + 1]: rows with that many weights above 0
  std::vector<double> sizes;      // [SIZES]: elements by the upper 16 bits of |x|, without the sign
  std::vector<double> largest;    // [ranks, LARGEST + 2 H]: of |x|, falling; of each head's weights; of its |z|
};

static float size_of_bin(int bin) { return std::bit_cast<float>((unsigned(bin) << 15) + (1u << 14)); }

// Adds the statistics of the first `count` windows of a batch.
static void add(LayerSums& sums, const LayerStatistics& statistics, const Config& config, int batch, int count, int T,
                int rank) {
  const AttentionSettings attention = config.layer(statistics.layer).attention;
  const char* dense = kind_row(attention.kind).dense_rows;
  int H = config.model.heads, dense_rows = dense ? int(attention.parameter(dense)) : 0;
  double unit = kind_row(attention.kind).unit;
  int bins = reach_bins(T), fields = REACH + bins, sink_rows = std::min(T, SINK_ROWS);
  double* largest = &sums.largest[size_t(rank) * (LARGEST + 2 * H)];
  for (int b = 0; b < count; b++)
    for (int h = 0; h < H; h++) {
      double *head = &sums.heads[size_t(h) * fields], sink = 0;
      for (int t = 0; t < T; t++) {
        auto statistic = [&](int f) { return double(statistics.rows[((size_t(f) * batch + b) * H + h) * T + t]); };
        double sum = statistic(RowStatistic::SUM), first = statistic(RowStatistic::FIRST),
               keys = statistic(RowStatistic::KEYS), zeros = statistic(RowStatistic::ZEROS);
        head[ALL]++;
        head[DEGENERATE] += sum == 0;
        largest[LARGEST + h] = std::max(largest[LARGEST + h], statistic(RowStatistic::LARGEST));
        largest[LARGEST + H + h] = std::max(largest[LARGEST + H + h], unit * statistic(RowStatistic::SCORE));
        head[SCORES] += unit * statistic(RowStatistic::SCORES), head[KEYS] += keys;
        if (t < sink_rows && sum > 0) sink += first / sum / sink_rows;
        if (keys > dense_rows) {
          head[PAIRS] += keys, head[ZEROS] += zeros;
          int position = int(int64_t(t) * POSITIONS / T);
          sums.positions[position] += zeros, sums.positions[POSITIONS + position] += keys;
          sums.survivors[size_t(keys - zeros)]++;
        }
        if (keys < 2) continue;
        head[SEEN]++;
        head[FIRST_RAW] += first, head[MASS] += sum;
        if (sum == 0) continue;
        double entropy = std::log(sum) - statistic(RowStatistic::P_LOG_P) / sum;
        head[ROWS]++;
        head[FIRST] += first / sum;
        head[ENTROPY] += entropy, head[ENTROPY_NORM] += entropy / std::log(keys);
        head[DISTANCE] += statistic(RowStatistic::DISTANCE) / sum;
        for (int bin = 0; bin < bins; bin++) head[REACH + bin] += statistic(RowStatistic::REACH + bin) / sum;
      }
      head[SINKS] += sink > SINK_SHARE;
    }
  for (int h = 0; h < H && !statistics.tiles.empty(); h++) {
    const TileCount& tiles = statistics.tiles[size_t(statistics.layer) * H + h];
    sums.heads[size_t(h) * fields + TILES] += tiles.needed, sums.heads[size_t(h) * fields + TILES_SEEN] += tiles.seen;
  }
  size_t gated_heads = statistics.gate.size() / GATE_STATISTICS;  // those of keys and values serve several each
  for (size_t h = 0; h < size_t(H); h++)
    for (size_t n = 0; n < GATE_STATISTICS; n++)
      sums.gate[h * GateStatistic::COUNT + n % GateStatistic::COUNT] +=
          statistics.gate[h * gated_heads / size_t(H) * GATE_STATISTICS + n];
  for (float x : statistics.x) {
    float size = std::fabs(x);
    sums.sizes[std::bit_cast<unsigned>(size) >> 15]++;
    if (!(size > largest[LARGEST - 1])) continue;
    largest[LARGEST - 1] = size;
    std::sort(largest, largest + LARGEST, std::greater<>());
  }
}

// Over the ranks; largest then holds those of all in its first [LARGEST + 2 H].
static void all_reduce(LayerSums& sums, Comm& comm) {
  for (auto* values : {&sums.heads, &sums.positions, &sums.gate, &sums.survivors, &sums.sizes, &sums.largest})
    comm.all_reduce_sum(values->data(), values->size());
  size_t width = sums.largest.size() / size_t(comm.size());
  std::vector<double> sizes;
  for (size_t n = 0; n < sums.largest.size(); n++) {
    if (n % width < LARGEST) sizes.push_back(sums.largest[n]);
    else sums.largest[n % width] = std::max(sums.largest[n % width], sums.largest[n]);
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  std::copy_n(sizes.begin(), LARGEST, sums.largest.begin());
}

// ---- the report

static double rounded(double x) { return std::isfinite(x) ? std::strtod(format("%.6g", x).c_str(), nullptr) : NAN; }

template <class List> static ordered_json numbers(const List& list, double divisor = 1) {
  ordered_json result = ordered_json::array();
  for (double x : list) result.push_back(rounded(x / divisor));
  return result;
}

// The index by which this share of the counts is reached.
static int quantile(const std::vector<double>& counts, double share) {
  double all = std::accumulate(counts.begin(), counts.end(), 0.0), sum = 0;
  for (size_t n = 0; n < counts.size(); n++)
    if ((sum += counts[n]) >= share * all) return int(n);
  return 0;
}

// The distance within which this share of the reach lies.
static double distance_of(const double* reach, int bins, int T, double share) {
  double all = std::accumulate(reach, reach + bins, 0.0), before = 0;
  for (int bin = 0; bin < bins && all > 0; bin++) {
    double first = bin == 0 ? 0 : std::exp2(bin - 1), end = std::min(std::exp2(bin), double(T));
    if (before + reach[bin] >= share * all) return first + (share * all - before) / reach[bin] * (end - first);
    before += reach[bin];
  }
  return NAN;
}

static ordered_json head_json(const double* head, int bins, int T, double largest, double largest_score) {
  return {{"first", rounded(head[FIRST] / head[ROWS])},
          {"first_raw", rounded(head[FIRST_RAW] / head[SEEN])},
          {"sink_mass", rounded(1 - head[MASS] / head[SEEN])},
          {"entropy", rounded(head[ENTROPY] / head[ROWS])},
          {"entropy_norm", rounded(head[ENTROPY_NORM] / head[ROWS])},
          {"zeros", rounded(head[ZEROS] / head[PAIRS])},
          {"degenerate", rounded(head[DEGENERATE] / head[ALL])},
          {"tiles", rounded(head[TILES] / head[TILES_SEEN])},
          {"max", rounded(largest)},
          {"score", numbers(std::vector{head[SCORES] / head[KEYS], largest_score})},
          {"reach", numbers(std::vector<double>(head + REACH, head + REACH + bins), head[ROWS])},
          {"distance", rounded(head[DISTANCE] / head[ROWS])},
          {"d50", rounded(distance_of(head + REACH, bins, T, 0.5))},
          {"d90", rounded(distance_of(head + REACH, bins, T, 0.9))}};
}

// Adds what gate_statistics() counted, of a layer or of a head.
static void add_gate(ordered_json& to, bool gated, const std::vector<double>& g) {
  double all = std::accumulate(g.begin() + GateStatistic::NEGATIVE, g.end(), 0.0);  // elements
  to["gate"] = nullptr;
  if (gated)
    to.update({{"gate", rounded(g[GateStatistic::GATE] / all)},
               {"gate_below", numbers(std::vector{g[GateStatistic::CLOSED], g[GateStatistic::NARROW]}, all)},
               {"gate_shares", numbers(std::vector<double>(g.begin() + GateStatistic::NEGATIVE, g.end()), all)}});
  to.update({{"out_abs", numbers(std::vector{g[GateStatistic::BEFORE], g[GateStatistic::AFTER]}, all)},
             {"out_below", numbers(std::vector{g[GateStatistic::BELOW_001], g[GateStatistic::BELOW_0001]}, all)}});
}

static ordered_json layer_json(const LayerSums& sums, const Config& config, int l, int T) {
  int bins = reach_bins(T), H = config.model.heads;
  const GateSettings gate = config.layer(l).attention.gate;
  double elements = std::accumulate(sums.sizes.begin(), sums.sizes.end(), 0.0), massive = 0;
  double median = size_of_bin(quantile(sums.sizes, 0.5)), limit = std::max(100.0, 1000 * median);
  for (int bin = 0; bin < SIZES; bin++) massive += size_of_bin(bin) > limit ? sums.sizes[bin] : 0;
  std::vector<double> of_layer(GateStatistic::COUNT);
  for (size_t n = 0; n < sums.gate.size(); n++) of_layer[n % GateStatistic::COUNT] += sums.gate[n];
  std::vector<double> zeros, survivors(sums.survivors);
  for (int n = 0; n < POSITIONS; n++) zeros.push_back(sums.positions[n] / sums.positions[POSITIONS + n]);
  double rows = std::accumulate(survivors.begin(), survivors.end(), 0.0), kept = 0;
  for (size_t n = 0; n < survivors.size(); n++) kept += double(n) * survivors[n] / rows;
  ordered_json layer = {{"max", numbers(std::vector<double>(sums.largest.begin(), sums.largest.begin() + LARGEST))},
                        {"median", rounded(median)},
                        {"massive", rounded(massive / elements)}};
  add_gate(layer, gate.exists(), of_layer);
  layer.update({{"zeros_by_position", numbers(zeros)},
                {"survivors", {rounded(kept), quantile(survivors, 0.5)}},
                {"heads", ordered_json::array()}});
  for (int h = 0; h < H; h++) {
    layer["heads"].push_back(head_json(&sums.heads[size_t(h) * (REACH + bins)], bins, T,
                                       sums.largest[size_t(LARGEST) + h], sums.largest[size_t(LARGEST) + H + h]));
    auto of_head = sums.gate.begin() + h * GateStatistic::COUNT;
    if (!gate.exists() || gate.position != GatePosition::output)  // there the heads are mixed
      add_gate(layer["heads"].back(), gate.exists(), {of_head, of_head + GateStatistic::COUNT});
  }
  return layer;
}

// Of a field of all heads of these layers; NaN where it is null everywhere.
static double mean(const ordered_json& layers, const char* field) {
  double sum = 0, count = 0;
  for (const ordered_json& layer : layers)
    for (const ordered_json& head : layer["heads"])
      if (head[field].is_number() && std::isfinite(head[field].get<double>()))
        sum += head[field].get<double>(), count++;
  return sum / count;
}

static ordered_json report_of(const std::vector<LayerSums>& all, const Config& config, int length, int64_t sequences) {
  ordered_json layers = ordered_json::array();
  double sinks = 0, largest = 0, gate = 0, gates = 0, count = double(all.size());
  size_t fields = REACH + size_t(reach_bins(length));
  for (const LayerSums& sums : all) {
    layers.push_back(layer_json(sums, config, int(layers.size()), length));
    for (int h = 0; h < config.model.heads; h++) sinks += sums.heads[h * fields + SINKS];
    largest += sums.largest[0] / count;
    if (layers.back()["gate"].is_number()) gate += layers.back()["gate"].get<double>(), gates++;
  }
  return {{"first_token", rounded(mean(layers, "first"))},
          {"sink_rate", rounded(100 * sinks / (double(sequences) * count * config.model.heads))},
          {"entropy", rounded(mean(layers, "entropy"))},
          {"entropy_norm", rounded(mean(layers, "entropy_norm"))},
          {"m_act", rounded(largest)},
          {"gate", rounded(gate / gates)},
          {"zeros", rounded(mean(layers, "zeros"))},
          {"layers", layers}};
}

static void print(const ordered_json& report) {
  auto number = [](const ordered_json& x) { return x.is_number() ? x.get<double>() : NAN; };
  const ordered_json& layers = report["layers"];
  std::printf("diagnostics  step %ld  length %d | %ld %s | sink rate %.1f %% | M-Act %.4g\n",
              report["step"].get<int64_t>(), report["length"].get<int>(), report["sequences"].get<int64_t>(),
              plural(number(report["sequences"]), "window").c_str(), number(report["sink_rate"]),
              number(report["m_act"]));
  std::printf(
      " layer | first token  entropy   norm |  zeros  degenerate | tiles |    d50     d90 |  max |x|   median |  "
      "gate\n");
  auto line = [&](const std::string& name, const ordered_json& some, double size, double median, double gate) {
    auto cell = [&](const char* form, const char* field) { return cell_text(form, mean(some, field)); };
    std::printf("%6s | %s %s %s | %s %s | %s | %s %s | %8.4g %8.3g | %s\n", name.c_str(),
                cell("%11.4f", "first").c_str(), cell("%8.3f", "entropy").c_str(),
                cell("%6.3f", "entropy_norm").c_str(), cell("%6.3f", "zeros").c_str(),
                cell("%11.4f", "degenerate").c_str(), cell("%5.3f", "tiles").c_str(), cell("%6.1f", "d50").c_str(),
                cell("%7.1f", "d90").c_str(), size, median, cell_text("%5.3f", gate).c_str());
  };
  double median = 0;
  for (size_t l = 0; l < layers.size(); l++) {
    const ordered_json& layer = layers[l];
    line(std::to_string(l), ordered_json::array({layer}), number(layer["max"][0]), number(layer["median"]),
         number(layer["gate"]));
    median += number(layer["median"]) / double(layers.size());
  }
  line("mean", layers, number(report["m_act"]), median, number(report["gate"]));
  std::fflush(stdout);
}

// ---- what the heads learned

ordered_json learned_by_head(Model& model) {
  ordered_json learned;
  ParameterStore& store = model.parameters();
  if (std::ranges::none_of(store.tensors(), &Tensor::by_head)) return learned;
  store.gather(Part::parameters);
  for (const Tensor& tensor : store.tensors()) {
    if (!tensor.by_head) continue;
    std::vector<float> values(tensor.size);
    store.read(tensor, Part::parameters, values.data());
    ordered_json& layers = learned[tensor.name.substr(tensor.name.find('.', 2) + 1)];  // without "h.LAYER."
    if (layers.is_null()) layers = ordered_json::array_t(size_t(model.config().model.layers));
    layers[size_t(tensor.layer)] = values;
  }
  return learned;
}

static void print_learned(const ordered_json& learned) {
  for (const auto& [name, layers] : learned.items()) {
    std::printf(" layer | %s of head 0, 1, ...\n", name.c_str());
    for (size_t l = 0; l < layers.size(); l++) {
      std::string line;
      for (const ordered_json& value : layers[l]) (line += ' ') += cell_text("%8.4g", value.get<double>());
      if (!line.empty()) std::printf("%6zu |%s\n", l, line.c_str());
    }
  }
  std::fflush(stdout);
}

// ---- all of it

// The fields of a line that say what was looked at.
static ordered_json question(const Config& config, int separator, const std::vector<Shard>& shards,
                             const std::vector<DataFile>& files, int length) {
  EvalWindows windows = diagnostics_windows(config, separator, shards, length);
  ordered_json of = conditions_at(config, length);
  of["data"] = data_json(files_of(windows, shards, files));
  return {{"length", length},
          {"sequences", windows.count},
          {"start", window_start_names[int(config.diagnostics.start)]},
          {"of", of}};
}

std::string diagnostics_id(const Config& config, int separator, const std::vector<Shard>& shards,
                           const std::vector<DataFile>& files, int length) {
  return evaluation_id(question(config, separator, shards, files, length));
}

bool diagnose_lengths(const EvalContext& context, const std::vector<Shard>& shards, const std::vector<DataFile>& files,
                      const std::vector<int>& lengths) {
  Model& model = context.model;
  const Config& config = model.config();
  Comm& comm = model.comm();
  size_t L = size_t(config.model.layers), H = size_t(config.model.heads), ranks = size_t(comm.size());
  const ordered_json learned = learned_by_head(model);
  bool finite = true;
  for (int length : lengths) {
    const EvalWindows windows = diagnostics_windows(config, model.facts().separator, shards, length);
    int64_t count = windows.count;
    int batch = window_batch(config, length);
    LayerSums empty{std::vector<double>(H * (REACH + reach_bins(length))),
                    std::vector<double>(2 * POSITIONS),
                    std::vector<double>(H * GateStatistic::COUNT),
                    std::vector<double>(length + 1),
                    std::vector<double>(SIZES),
                    std::vector<double>(ranks * (LARGEST + 2 * H))};
    std::vector<LayerSums> layers(L, empty);
    std::vector<int> inputs(size_t(batch) * length), unused(inputs.size());
    auto add_batch = [&](int64_t window, int here) {
      read_batch(windows.reader, window, here, length, inputs, unused, nullptr);
      model.diagnose(inputs.data(), batch, length, here, [&](const LayerStatistics& statistics) {
        add(layers[statistics.layer], statistics, config, batch, here, length, comm.rank());
      });
    };
    std::string what = format("diagnostics length %d", length);
    if (!for_windows_of_rank(model, what, length, count, batch, context.stop, add_batch)) return finite;
    for (LayerSums& sums : layers) {
      all_reduce(sums, comm);
      constexpr int INFINITE = 0xff << 8;  // this bin and those above are of infinities and NaN
      finite = finite && std::all_of(sums.sizes.begin() + INFINITE, sums.sizes.end(), [](double n) { return n == 0; });
    }
    ordered_json asked = question(config, model.facts().separator, shards, files, length),
                 report = line_of(context.origin, evaluation_id(asked));
    report.update(asked);
    report.update(report_of(layers, config, length, count));
    AttentionSettings attention = config.attention_at(length);
    if (attention.window) report.update({{"window", attention.window}, {"sink_tokens", attention.sink_tokens}});
    if (!learned.is_null()) report["learned"] = learned;
    print(report);
    context.metrics.write("diagnostics", report);
  }
  print_learned(learned);
  return finite;
}
