// What attention.layers makes of the other keys, layer by layer.
#include "settings/config.h"

Config::Layer Config::layer(int l, int length) const {
  Layer layer = {attention_at(length), model.position == Position::rope, {}};
  if (!layers.empty()) layer.own = layers[size_t(l) % layers.size()];
  AttentionSettings& a = layer.attention;
  const LayerEntry& own = layer.own;
  if (own.says("kind")) a.kind = own.kind;
  if (own.says("bias")) a.bias = own.bias;
  if (own.says("documents")) a.documents = own.documents;
  if (own.says("window")) {  // at every length
    a.window = own.window;
    a.sink_tokens = own.window > 0 ? attention.sink_tokens : 0;
  }
  if (!own.rotated) layer.rotated = false;
  if (!own.gated) a.gate.activation = GateActivation::none;
  if (!kind_row(a.kind).has_sink) a.sink = Sink::none;
  return layer;
}
