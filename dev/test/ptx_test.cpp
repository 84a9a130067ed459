// The interpreter of PTX where nvcc's output does not lead it: kernels written here, with results that follow from the
// text of the PTX ISA. Only a build for the interpreter has it (BACKEND=ptx).
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "dev/ptx/machine.h"
#include "dev/ptx/memory.h"
#include "dev/ptx/parse.h"
#include "test/support/error_of.h"

namespace {

using Results = std::array<uint64_t, ptx::LANES>;

// Runs instructions in one warp and returns every lane's %rd0. %r0 is the lane; %rd1 points to four words of global
// memory, 4 lane + 1, + 2, + 3, + 4, and %r1 to room for them in shared memory. Of several blocks all write results.
Results run(const std::string& instructions, uint32_t blocks = 1) {
  std::map<std::string, std::unique_ptr<ptx::Kernel>> kernels;
  ptx::parse_module(R"(
    .visible .entry corner(.param .u64 in, .param .u64 out) {
      .reg .pred %p<4>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .b64 %rd<8>;
      .shared .align 16 .b8 room[512];
      mov.u32 %r0, %tid.x; mov.u32 %r1, room; mad.lo.u32 %r1, %r0, 16, %r1;
      ld.param.u64 %rd1, [in]; mad.wide.u32 %rd1, %r0, 16, %rd1;
      ld.param.u64 %rd7, [out]; mad.wide.u32 %rd7, %r0, 8, %rd7;)" +
                        instructions + " st.global.u64 [%rd7], %rd0; ret; }",
                    kernels);
  std::vector<uint32_t> words(4 * ptx::LANES);
  std::iota(words.begin(), words.end(), 1);
  Results results;
  uint64_t in = ptx::new_global(4 * words.size()), out = ptx::new_global(sizeof results);
  memcpy(reinterpret_cast<void*>(in), words.data(), 4 * words.size());
  void* arguments[] = {&in, &out};
  ptx::run_kernel(*kernels.at("corner"), {blocks, 1, 1}, {ptx::LANES, 1, 1}, arguments, 0);
  memcpy(&results, reinterpret_cast<void*>(out), sizeof results);
  ptx::free_global(in), ptx::free_global(out);
  return results;
}

// The result of one instruction. registers: a letter for its destination and for each operand, h, r or d for 16, 32 or
// 64 bits; then the operands' bits.
uint64_t result(const std::string& opcode, const std::string& registers, const std::vector<uint64_t>& operands) {
  auto name = [&](size_t n) {
    return (registers[n] == 'd' ? "%rd" : registers[n] == 'r' ? "%r" : "%h") + std::to_string(n + 2);
  };
  auto bits = [&](size_t n) { return registers[n] == 'd' ? "64 " : registers[n] == 'r' ? "32 " : "16 "; };
  std::string moves, list = name(0);
  for (size_t n = 1; n < registers.size(); n++) {
    moves += std::string("mov.b") + bits(n) + name(n) + ", " + std::to_string(operands.at(n - 1)) + "; ";
    list += ", " + name(n);
  }
  return run(moves + opcode + " " + list + "; cvt.u64.u" + bits(0) + "%rd0, " + name(0) + ";")[0];
}

std::string notices_in(const std::string& instructions, uint32_t blocks = 1) {
  testing::internal::CaptureStderr();
  run(instructions, blocks);
  ptx::take_notices();
  return testing::internal::GetCapturedStderr();
}

std::string error_in(const std::string& instructions) {
  try {
    run(instructions);
  } catch (const ptx::Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr uint64_t NAN_64 = 0x7ff8000000000000, NAN_32 = 0x7fc00000, TOP = uint64_t(1) << 63;

TEST(PtxCorners, FmaOfBf16RoundsOnce) {
  // 1.5 x 1.0078125 is the middle between 0x3fc1 and 0x3fc2, 1.5 x 1.0234375 that between 0x3fc4 and 0x3fc5: the third
  // operand decides, however small it is
  for (uint64_t tiny : {0x2b80, 0x0d80, 0x0001}) {
    EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x3fc0, 0x3f81, 0x8000 | tiny}), 0x3fc1) << tiny;
    EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x3fc0, 0x3f83, tiny}), 0x3fc5) << tiny;
    EXPECT_EQ(result("fma.rn.bf16x2", "rrrr", {0x3fc03fc0, 0x3f833f81, tiny << 16 | 0x8000 | tiny}), 0x3fc53fc1);
  }
  EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x3fc0, 0x3f81, 0}), 0x3fc2);
  EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x3fc0, 0x3f83, 0}), 0x3fc4);
  EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x7f80, 0xbf80, 0x3f80}), 0xff80);  // infinity
  EXPECT_EQ(result("fma.rn.bf16", "hhhh", {0x7f80, 0x0000, 0x3f80}), 0x7fff);  // NaN
}

TEST(PtxCorners, IntegersToBf16RoundOnce) {  // each is just above the middle between two
  EXPECT_EQ(result("cvt.rn.bf16.u32", "hr", {0x80800001}), 0x4f01);
  EXPECT_EQ(result("cvt.rn.bf16.u64", "hd", {0x8080000000000001}), 0x5f01);
  EXPECT_EQ(result("cvt.rn.bf16.s64", "hd", {0 - uint64_t(0x4040000000000001)}), 0xde81);
  EXPECT_EQ(result("cvt.rn.f32.u64", "rd", {0x8000008000000001}), 0x5f000001);
}

TEST(PtxCorners, IntegersToFloat64Round) {
  EXPECT_EQ(result("cvt.rz.f64.u64", "dd", {~uint64_t(0)}), 0x43efffffffffffff);
  EXPECT_EQ(result("cvt.rm.f64.u64", "dd", {~uint64_t(0)}), 0x43efffffffffffff);
  EXPECT_EQ(result("cvt.rp.f64.u64", "dd", {TOP | 1}), 0x43e0000000000001);
  EXPECT_EQ(result("cvt.rn.f64.u64", "dd", {TOP | 1}), 0x43e0000000000000);
  EXPECT_EQ(result("cvt.rz.f64.s64", "dd", {TOP | 1}), 0xc3dfffffffffffff);
  EXPECT_EQ(result("cvt.rm.f64.s64", "dd", {TOP | 1}), 0xc3e0000000000000);
  EXPECT_EQ(result("cvt.rp.f64.s64", "dd", {TOP | 1}), 0xc3dfffffffffffff);
}

TEST(PtxCorners, NanToIntegers) {
  EXPECT_EQ(result("cvt.rni.s32.f64", "rd", {NAN_64}), 0x80000000);
  EXPECT_EQ(result("cvt.rzi.u32.f64", "rd", {NAN_64}), 0x80000000);
  EXPECT_EQ(result("cvt.rzi.u16.f64", "hd", {NAN_64}), 0x8000);
  EXPECT_EQ(result("cvt.rzi.s64.f64", "dd", {NAN_64}), TOP);
  EXPECT_EQ(result("cvt.rzi.s64.f32", "dr", {NAN_32}), TOP);
  EXPECT_EQ(result("cvt.rzi.s32.f32", "rr", {NAN_32}), 0);
}

TEST(PtxCorners, FtzFlushesResults) {
  constexpr uint64_t SMALL = 0x37d0000000000000;  // 2^-130
  EXPECT_EQ(result("cvt.rn.ftz.f32.f64", "rd", {SMALL}), 0);
  EXPECT_EQ(result("cvt.rn.ftz.f32.f64", "rd", {TOP | SMALL}), 0x80000000);
  EXPECT_EQ(result("cvt.rn.f32.f64", "rd", {SMALL}), 0x00080000);
  EXPECT_EQ(result("cvt.ftz.f64.f32", "dr", {0x00080000}), 0);
  expect_has(error_in("cvt.rzi.ftz.s32.f64 %r2, %rd1;"), {"cvt.rzi.ftz.s32.f64 is not known"});
}

TEST(PtxCorners, SaturationGivesNoNegativeZero) {
  EXPECT_EQ(result("cvt.sat.f64.f32", "dr", {0x80000000}), 0);
  EXPECT_EQ(result("cvt.rn.sat.f32.f64", "rd", {TOP}), 0);
  EXPECT_EQ(result("cvt.sat.f32.f32", "rr", {0x80000000}), 0);
  EXPECT_EQ(result("cvt.rn.sat.f32.f64", "rd", {NAN_64}), 0);
  EXPECT_EQ(result("cvt.rn.sat.f32.s32", "rr", {5}), 0x3f800000);  // 1
  EXPECT_EQ(result("cvt.rn.sat.f32.s32", "rr", {0xfffffffb}), 0);
}

TEST(PtxCorners, LanesVoteWithThoseTheirMaskNames) {
  const std::string masks = R"(
    and.b32 %r2, %r0, 1; setp.eq.u32 %p0, %r2, 0; selp.b32 %r2, 0x55555555, 0xaaaaaaaa, %p0;
    setp.lt.u32 %p1, %r0, 16;)";
  const Results ballots = run(masks + "vote.sync.ballot.b32 %r3, %p1, %r2; cvt.u64.u32 %rd0, %r3;");
  const Results opposite = run(masks + "vote.sync.ballot.b32 %r3, !%p1, %r2; cvt.u64.u32 %rd0, %r3;");
  const Results shuffled = run(masks + "shfl.sync.bfly.b32 %r3, %r0, 2, 31, %r2; cvt.u64.u32 %rd0, %r3;");
  for (int lane = 0; lane < ptx::LANES; lane++) {
    EXPECT_EQ(ballots[lane], lane % 2 ? 0xaaaau : 0x5555u) << lane;
    EXPECT_EQ(opposite[lane], lane % 2 ? 0xaaaa0000u : 0x55550000u) << lane;
    EXPECT_EQ(shuffled[lane], lane ^ 2) << lane;
  }
  EXPECT_EQ(ptx::take_notices(), 0);
  testing::internal::CaptureStderr();
  run(masks + "shfl.sync.bfly.b32 %r3, %r0, 1, 31, %r2; cvt.u64.u32 %rd0, %r3;");  // with the other group's lanes
  EXPECT_GT(ptx::take_notices(), 0);
  run("vote.sync.ballot.b32 %r3, 1, 0x7fffffff; cvt.u64.u32 %rd0, %r3;");
  EXPECT_GT(ptx::take_notices(), 0);
  expect_has(testing::internal::GetCapturedStderr(),
             {"shuffle from a lane that does not take part", "member mask without the lane itself"});
}

// The lower half of the warp waits for its first lanes, which come to the vote late; the upper half does not.
TEST(PtxCorners, LanesWaitForThoseTheirMaskNames) {
  const Results ballots = run(R"(
      setp.lt.u32 %p0, %r0, 16; selp.b32 %r2, 0x0000ffff, 0xffff0000, %p0; setp.lt.u32 %p1, %r0, 8; @%p1 bra late;
    vote:
      vote.sync.ballot.b32 %r3, %p1, %r2; cvt.u64.u32 %rd0, %r3; bra end;
    late:
      setp.lt.u32 %p1, %r0, 4; bra vote;
    end:)");
  for (int lane = 0; lane < ptx::LANES; lane++) EXPECT_EQ(ballots[lane], lane < 16 ? 0xfu : 0u) << lane;
  EXPECT_EQ(ptx::take_notices(), 0);
}

TEST(PtxCorners, CopiesWhoseSourceIsIgnored) {
  auto last_word = [](const std::string& operand) {
    return run("setp.lt.u32 %p0, %r0, 16; mov.u32 %r2, 4; cp.async.cg.shared.global [%r1], [%rd1], 16" + operand +
               "; cp.async.wait_all; ld.shared.u32 %r3, [%r1+12]; cvt.u64.u32 %rd0, %r3;");
  };
  const Results whole = last_word(""), first = last_word(", %p0"), second = last_word(", !%p0"),
                cut = last_word(", %r2");
  for (uint64_t lane = 0; lane < ptx::LANES; lane++) {
    EXPECT_EQ(whole[lane], 4 * lane + 4);
    EXPECT_EQ(first[lane], lane < 16 ? 0 : 4 * lane + 4);
    EXPECT_EQ(second[lane], lane < 16 ? 4 * lane + 4 : 0);
    EXPECT_EQ(cut[lane], 0);
  }
  EXPECT_EQ(ptx::take_notices(), 0);
}

// Register n of lane l is 100 n + l: lane 8 n + r stores row r of matrix n, which lanes 4 r to 4 r + 3 have.
TEST(PtxCorners, StmatrixStoresRowsOfLanes) {
  const std::string registers =
      "add.s32 %r2, %r0, 0; add.s32 %r3, %r0, 100; add.s32 %r4, %r0, 200; add.s32 %r5, %r0, 300; "
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r3, %r4, %r5}; ";
  const Results third = run(registers + "ld.shared.u32 %r6, [%r1+8]; cvt.u64.u32 %rd0, %r6;");
  for (uint64_t lane = 0; lane < ptx::LANES; lane++) EXPECT_EQ(third[lane], lane / 8 * 100 + lane % 8 * 4 + 2) << lane;
  EXPECT_EQ(ptx::take_notices(), 0);
  expect_has(notices_in(registers + "xor.b32 %r6, %r1, 16; ld.shared.u64 %rd0, [%r6];"),
             {"race in shared memory: read of what another lane wrote"});
  expect_has(error_in("setp.lt.u32 %p0, %r0, 16; mov.u32 %r2, 0; "
                      "@%p0 stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r1], {%r2, %r2, %r2, %r2};"),
             {"lanes that wait for each other", "stmatrix"});
  expect_has(notices_in("mov.u64 %rd0, 0; mov.u32 %r2, 0; and.b32 %r1, %r1, 0xfffffeff; "
                        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1+4], {%r2, %r2};"),
             {"misaligned address", "stmatrix"});
  expect_has(error_in("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r1], {%r2, %r2, %r2, %r2};"), {"is not known"});
}

TEST(PtxCorners, AdditionsOfFourFloats) {
  auto floats = [](int word) {  // 1.5, 1.5, and subnormal numbers before and behind the addition
    return "mov.b32 %r2, 0x3fc00000; mov.b32 %r3, 0x80000001; st.global.v4.b32 [%rd1], {%r2, %r2, %r3, %r3}; "
           "red.global.add.v4.f32 [%rd1], {%r2, %r3, %r2, %r3}; ld.global.cg.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1]; "
           "cvt.u64.u32 %rd0, %r" +
           std::to_string(4 + word) + ";";
  };
  const uint64_t sums[4] = {0x40400000, 0x3fc00000, 0x3fc00000, 0x80000000};  // 3, 1.5, 1.5, -0
  for (int word = 0; word < 4; word++) EXPECT_EQ(run(floats(word))[31], sums[word]) << word;
  EXPECT_EQ(ptx::take_notices(), 0);
  expect_has(notices_in("mov.b32 %r2, 0; red.global.add.v4.f32 [%rd1], {%r2, %r2, %r2, %r2}; mov.u64 %rd0, 0;", 2),
             {"race in global memory: another block wrote this: red.global.add.v4.f32"});
  expect_has(notices_in("mov.u64 %rd0, 0; mov.u32 %r2, 0; setp.lt.u32 %p0, %r0, 31; "
                        "@%p0 red.global.add.v4.f32 [%rd1+4], {%r2, %r2, %r2, %r2};"),
             {"misaligned address: @%p0 red.global.add.v4.f32"});
}

TEST(PtxCorners, ConstantsThatNvccNeverWritesAreRefused) {
  for (const char* constant : {"1.5", "0b101", "1+2", "017", "0x", "0xfg", "12U", "0f3f8", "18446744073709551616"}) {
    const std::string part = std::string("constant ") + constant;
    expect_has(error_in(std::string("mov.u64 %rd0, ") + constant + ";"), {part, "in kernel corner"});
    expect_has(error_in(std::string("ld.global.u32 %r2, [%rd1+") + constant + "];"), {part});
  }
  expect_has(error_in("mov.u64 %rd0, !0;"), {"only a predicate can be negated, not 0"});
  expect_has(error_in("mov.u32 %r2, !%r0;"), {"only a predicate can be negated, not %r0"});
  expect_has(error_in("setp.eq.u32 %p0, %r0, 0; selp.b32 %r2, 1, 2, !%p0;"), {"cannot be negated", "selp.b32"});
  EXPECT_EQ(run("mov.u64 %rd0, 0x1F;")[0], 0x1f);
  EXPECT_EQ(run("mov.u64 %rd0, -1;")[0], ~uint64_t(0));
  EXPECT_EQ(run("mov.u64 %rd0, 18446744073709551615;")[0], ~uint64_t(0));
  EXPECT_EQ(run("mov.f64 %rd0, 0d3FF8000000000000;")[0], 0x3ff8000000000000);
  EXPECT_EQ(run("add.s64 %rd1, %rd1, 4; ld.global.u32 %r2, [%rd1+-4]; cvt.u64.u32 %rd0, %r2;")[1], 5);
}

}  // namespace
