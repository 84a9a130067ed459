// The learning rate of optimizer step s = 0 .. steps-1: a linear warmup, then what optimizer.schedule says.
// It depends on the settings and s alone, so a resumed run continues it. optimizer.schedule_start is the step that
// counts as the first.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "settings/config.h"

// peak: of the rate that the schedule multiplies.
inline double scheduled(const Config& config, int64_t step, double peak) {
  const Config::Optimizer& o = config.optimizer;
  step = std::max<int64_t>(0, step - o.schedule_start);
  if (step < o.warmup_steps) return peak * double(step + 1) / double(o.warmup_steps);
  auto steps = double(config.train.steps - o.schedule_start);
  auto warmup = double(o.warmup_steps);
  auto s = double(step);
  double x = (s - warmup) / std::max(1.0, steps - warmup);  // 0 after the warmup, 1 at the step after the last
  double f = o.final_lr_fraction;
  if (o.schedule == Schedule::constant) return peak;
  if (o.schedule == Schedule::linear) return peak * (1 - (1 - f) * x);
  if (o.schedule == Schedule::cosine) return peak * (f + (1 - f) * (1 + std::cos(3.14159265358979323846 * x)) / 2);
  double decay = o.decay_fraction * steps;  // Schedule::wsd: steps, the last of the run
  double into = s - (steps - decay);
  return into <= 0 ? peak : peak * (1 - (1 - f) * into / decay);
}

inline double learning_rate(const Config& config, int64_t step) { return scheduled(config, step, config.optimizer.lr); }
inline double muon_rate(const Config& config, int64_t step) {
  return scheduled(config, step, config.optimizer.muon.lr);
}
