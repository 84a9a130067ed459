// Muon: the orthogonal update against its formula, and three updates of whole models against the formula of
// torch.optim.Muon in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/muon.cuh"
#include "test/kernels/reference.h"
#include "test/model/small_model.h"
#include "test/support/compare.h"

namespace {

const bool poisoned = (set_cpu_poison(true), true);

// [rows, columns]
template <class P> struct Grid {
  size_t rows, columns;
  Reals<P> x;
  Grid(size_t rows, size_t columns, Reals<P> x = {}) : rows(rows), columns(columns), x(std::move(x)) {
    this->x.resize(rows * columns);
  }
  Real<P>& at(size_t r, size_t c) { return x[r * columns + c]; }
  Grid transposed() {
    Grid t(columns, rows);
    for (size_t r = 0; r < rows; r++)
      for (size_t c = 0; c < columns; c++) t.at(c, r) = at(r, c);
    return t;
  }
};

// alpha a b + beta c, with each sum rounded once
template <class P> Grid<P> product(Grid<P>& a, Grid<P>& b, double alpha = 1, double beta = 0, Grid<P>* c = nullptr) {
  Grid<P> out(a.rows, b.columns);
  for (size_t i = 0; i < out.rows; i++)
    for (size_t j = 0; j < out.columns; j++) {
      Real<P> sum = 0;
      for (size_t k = 0; k < a.columns; k++) sum += a.at(i, k) * b.at(k, j);
      out.at(i, j) = P::round(Real<P>(alpha) * sum + (c ? Real<P>(beta) * c->at(i, j) : Real<P>(0)));
    }
  return out;
}

// As torch.optim.Muon: of a tall matrix the transpose.
template <class P> Reals<P> ref_orthogonalise(const Reals<P>& u, size_t rows, size_t columns) {
  Grid<P> x(rows, columns, u);
  if (rows > columns) x = x.transposed();
  Real<P> squares = 0;
  for (Real<P> value : u) squares += value * value;
  for (Real<P>& value : x.x) value = P::round(value / (std::sqrt(squares) + Real<P>(1e-7)));
  for (int step = 0; step < 5; step++) {
    Grid<P> t = x.transposed(), a = product<P>(x, t), b = product<P>(a, a, 2.0315, -4.7750, &a);
    x = product<P>(b, x, 1, 3.4445, &x);
  }
  return rows > columns ? x.transposed().x : x.x;
}

template <class T> class MuonTest : public testing::Test {};
using StorageTypes = testing::Types<float, bf16>;
TYPED_TEST_SUITE(MuonTest, StorageTypes);

// Two matrices of a shape, with other columns between their rows that must stay as they are.
TYPED_TEST(MuonTest, Orthogonalise) {
  using T = TypeParam;
  std::pair<int, int> shapes[] = {{2, 3}, {7, 5}, {24, 18}, {18, 24}, {33, 33}, {40, 129}, {300, 16}, {64, 64}};
  for (auto [m, n] : shapes)
    for (int gap : {0, 3}) {
      size_t size = size_t(m) * n, stride = size_t(n) + gap;
      Kernel<T> kernel("orthogonalise", {m, n, gap}, {{"first", unit_roundoff<T>}, {"second", unit_roundoff<T>}});
      for (unsigned seed : Pool::seeds(size)) {
        auto first = random_normal<float>(size, seed, 0.3f), second = random_normal<float>(size, seed + 1, 1e-3f);
        kernel.check(
            [&] {
              std::vector<float> both = with_gaps(first, n, gap, 7.0f), more = with_gaps(second, n, gap, 7.0f);
              RowBlock one{0, size_t(m), size_t(n), stride}, other{both.size(), size_t(m), size_t(n), stride};
              std::vector<RowBlock> blocks = {one, other};
              size_t half = both.size();
              both.insert(both.end(), more.begin(), more.end());
              DeviceArray<float> u(both);
              MuonWork<T> work;
              MemoryPlan plan;
              work.plan(plan, blocks, 2);
              DeviceBlock memory(plan);
              orthogonalise(u, blocks, work, nullptr);
              std::vector<float> all = u.download(), back = without_first(all, half);
              all.resize(half);
              expect_gaps("orthogonalise", all, n, gap, 7);
              return outputs(without_gaps(all, n, gap), without_gaps(back, n, gap));
            },
            [&]<class P>(P) {
              return std::vector<Reals<P>>{ref_orthogonalise<P>(widen<P>(first), m, n),
                                           ref_orthogonalise<P>(widen<P>(second), m, n)};
            });
      }
    }
}

TEST(Muon, OrthogonaliseLeavesNoGradientAsNoUpdate) {
  DeviceArray<float> u(std::vector<float>(15, 0.0f));
  RowBlock block{0, 3, 5, 5};
  MuonWork<float> work;
  MemoryPlan plan;
  work.plan(plan, {&block, 1}, 1);
  DeviceBlock memory(plan);
  orthogonalise(u, {&block, 1}, work, nullptr);
  EXPECT_EQ(u.download(), std::vector<float>(15, 0.0f));
}

TEST(Muon, Scales) {
  RowBlock wide{0, 24, 96, 96}, tall{0, 96, 24, 24};
  EXPECT_FLOAT_EQ(Muon{}.scale(wide), 2);
  EXPECT_FLOAT_EQ(Muon{}.scale(tall), 1);
  EXPECT_FLOAT_EQ(Muon{.rms = true}.scale(wide), 0.2f * std::sqrt(96.0f));
  EXPECT_FLOAT_EQ(Muon{.rms = true}.scale(tall), 0.2f * std::sqrt(96.0f));
}

// Three updates, clipped: the matrices by Muon's formula, all else by AdamW's. The gradients are the model's own.
template <class P> struct RefMuon {
  std::vector<Reals<P>> momenta;
  void step(Reals<P>& w, const std::vector<float>& gradient, double scale, const Muon& s, size_t rows, size_t columns,
            const std::vector<size_t>& widths) {
    momenta.resize(widths.size());
    for (size_t part = 0, before = 0; part < widths.size(); before += widths[part++]) {
      size_t width = widths[part];
      Reals<P> u(rows * width), &momentum = momenta[part];
      momentum.resize(u.size());
      auto at = [&](size_t n) { return n / width * columns + before + n % width; };
      for (size_t n = 0; n < u.size(); n++) {
        Real<P> g = Real<P>(gradient[at(n)]) * Real<P>(scale), mu = s.momentum;
        momentum[n] = mu * momentum[n] + (1 - mu) * g;
        u[n] = (1 - mu) * g + mu * momentum[n];
      }
      Reals<P> x = ref_orthogonalise<P>(u, rows, width);
      double factor = s.rms ? 0.2 * std::sqrt(double(std::max(rows, width)))
                            : std::sqrt(std::max(1.0, double(width) / double(rows)));
      for (size_t n = 0; n < u.size(); n++) {
        w[at(n)] -= Real<P>(s.lr) * Real<P>(s.weight_decay) * w[at(n)];
        w[at(n)] -= Real<P>(s.lr * factor) * x[n];
      }
    }
  }
};

template <class T> void expect_three_updates(const std::vector<std::string>& sets) {
  const AdamW adamw = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 1};
  constexpr bool fp32 = std::is_same_v<T, float>;
  std::vector<std::string> all = sets;
  all.push_back("optimizer.matrices=muon");
  Config config = small_config(fp32 ? "fp32" : "bf16", all);
  if (!has_kernels(config)) return;
  Muon muon{.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.05f, .rms = config.optimizer.muon.scale == MuonScale::rms};
  TestBatch batch(config);
  auto model = small_model(config);
  struct State {
    Reals<Exact> exact;
    Reals<Naive<T>> naive;
    RefMuon<Exact> muon;
    RefMuon<Naive<T>> naive_muon;
    RefAdamW<Exact> adamw;
    std::vector<float> before;
  };
  std::map<std::string, State> states;
  auto tensors = model->parameters().tensors();
  for (const Tensor& tensor : tensors) {
    State& state = states[tensor.name];
    state.before = read(*model, tensor, Part::parameters);
    state.exact = widen<Exact>(state.before), state.naive = state.before;
    std::vector<double> zeros(tensor.size);
    state.adamw = {state.exact, state.exact, zeros, zeros};
  }
  for (int step = 1; step <= 3; step++) {
    StepResult result = gradients(*model, batch, 0.25f);
    double scale = std::min(1.0, 0.25 / double(result.grad_norm));
    for (const Tensor& tensor : tensors) {
      State& state = states[tensor.name];
      std::vector<float> gradient = read(*model, tensor, Part::gradients);
      std::vector<size_t> parts = {tensor.columns()};
      if (tensor.name.ends_with("c_attn.weight")) {  // q, k, v
        size_t D = size_t(config.model.head_dim), keys = D * size_t(config.model.kv_heads);
        parts = {D * size_t(config.model.heads), keys, keys};
      }
      if (!tensor.matrices.empty()) {
        state.muon.step(state.exact, gradient, scale, muon, tensor.rows(), tensor.columns(), parts);
        state.naive_muon.step(state.naive, gradient, scale, muon, tensor.rows(), tensor.columns(), parts);
      } else {
        state.adamw.step(widen<Exact>(gradient), scale, adamw.lr, adamw.beta1, adamw.beta2, adamw.eps,
                         tensor.decays ? adamw.weight_decay : 0, step);
      }
    }
    AdamW with = adamw;
    with.step = step;
    model->update(with, muon);
  }
  int matrices = 0;
  for (const Tensor& tensor : tensors) {
    State& state = states[tensor.name];
    std::vector<float> after = read(*model, tensor, Part::parameters);
    auto update = [&](const auto& weights) {
      std::vector<double> difference;
      for (size_t i = 0; i < tensor.size; i++) difference.push_back(as_double(weights[i]) - state.before[i]);
      return difference;
    };
    Deviation found = deviation(update(after), update(!tensor.matrices.empty() ? state.exact : state.adamw.master));
    double bound = 1e-5;
    if (!tensor.matrices.empty() && !fp32) bound = 2 * deviation(update(state.naive), update(state.exact)).error;
    EXPECT_LE(found.error, bound) << tensor.name << " at " << found.worst;
    matrices += int(tensor.matrices.size());
  }
  EXPECT_EQ(matrices, 6 * config.model.layers);
}

TYPED_TEST(MuonTest, ThreeUpdatesOfAModel) {
  const std::vector<std::vector<std::string>> cases = {{"model.position=rope"},
                                                       {"attention.variant=lssar_softplus_gated"},
                                                       {"attention.variant=fox"},
                                                       {"model.head_dim=8", "model.position=learned"},
                                                       {"model.heads=6", "model.kv_heads=2"},
                                                       {"model.mlp_ratio=1", "train.recompute=block"}};
  for (std::string scale : {"spectral", "rms"})
    for (std::vector<std::string> sets : cases) {
      SCOPED_TRACE(scale + " " + sets[0]);
      sets.insert(sets.end(), {"optimizer.muon.scale=" + scale, "optimizer.muon.lr=0.1"});
      expect_three_updates<TypeParam>(sets);
    }
}

// The second moments are those of AdamW's parameters alone; a plan counts what is allocated.
TEST(Muon, HasOneMomentLess) {
  for (std::string variant : {"softmax", "fox", "softplus_gated"}) {
    std::vector<std::string> sets = {"attention.variant=" + variant, "model.channels=256", "model.layers=3",
                                     "model.heads=4", "model.head_dim=64"};
    auto moments = [&](const Config& config) {
      MemoryPlan plan = plan_memory(config, 4, 44, 11, true);
      for (auto& [name, bytes] : plan.categories())
        if (name == "moments") return double(bytes);
      return 0.0;
    };
    Config without = small_config("bf16", sets);
    sets.push_back("optimizer.matrices=muon");
    Config with = small_config("bf16", sets);
    double matrices = 3 * 256.0 * 256 * (4 + 2 * 3);
    EXPECT_NEAR(moments(without) - moments(with), matrices * sizeof(float), 0.01 * matrices) << variant;
  }
}

}  // namespace
