#include "training/flops.h"

int64_t parameter_count(const Config& config) {
  int64_t count = 0;
  for (const Tensor& tensor : parameters_of(config)) count += int64_t(tensor.size);
  return count;
}

double needed_share(std::span<const TileCount> tiles) {
  double needed = 0, seen = 0;
  for (TileCount count : tiles) needed += count.needed, seen += count.seen;
  return seen > 0 ? needed / seen : 1;
}

double attention_flops_per_token(const Config& config, const std::vector<int>& documents,
                                 std::span<const TileCount> tiles) {
  const Config::Model& m = config.model;
  double context = 0, full = double(m.context) * (m.context + 1.0) / 2;  // keys of all rows of a sequence
  for (int l = 0; l < m.layers; l++) {
    AttentionSettings a = config.layer(l).attention;
    std::span<const int> lengths(&m.context, 1);
    if (a.documents == Documents::separate && !documents.empty()) lengths = documents;
    double seen = 0, rows = 0;
    for (int length : lengths) {
      double most = a.keys_seen(length);
      seen += most * (most + 1) / 2 + (length - most) * most, rows += length;
    }
    double share = tiles.empty() ? 1 : needed_share(tiles.subspan(size_t(l) * m.heads, m.heads));
    context += share * m.context * (seen * (m.context / rows) / full);
  }
  return 6.0 * context * m.heads * m.head_dim;
}

// Of a forward and a backward pass. logits: as for forward_flops_per_token().
static double products_flops_per_token(const Config& config, bool logits) {
  const Config::Model& m = config.model;
  double parameters = double(parameter_count(config));
  double outputs = double(m.vocab) * m.channels;
  if (m.head.outputs || !m.tied) parameters -= outputs;  // wte makes no logits
  if (!m.head.outputs && !logits) parameters -= outputs;
  return 6.0 * parameters;
}

double flops_per_token(const Config& config, const std::vector<int>& documents) {
  return products_flops_per_token(config, true) + attention_flops_per_token(config, documents);
}

double forward_flops_per_token(Config config, int length, bool logits, const std::vector<int>& documents) {
  double products = products_flops_per_token(config, logits);  // learned positions are as many as were trained
  config.attention = config.attention_at(length);
  config.model.context = length;
  return (products + attention_flops_per_token(config, documents)) / 3;
}

double update_flops(const Config& config) {
  double flops = 0;
  for (const Tensor& tensor : parameters_of(config))
    for (int columns : tensor.matrices)
      flops += orthogonalise_flops({0, tensor.rows(), size_t(columns), tensor.stride});
  return flops;
}
