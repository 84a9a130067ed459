// The replacement of NCCL on the CPU (on a GPU: NCCL itself, with one rank), the division of arrays among ranks, and
// how the environment numbers a rank. Ranks are threads here; test_ranks.py runs them as processes.
#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "ranks/buckets.h"
#include "ranks/comm.h"
#include "ranks/ranks.h"
#include "test/ranks/ranks_as_threads.h"
#include "test/support/error_of.h"

namespace {

// ---- collectives

// Calls f(comm, rank) at every rank.
void at_ranks(int ranks, const std::function<void(ncclComm_t, int)>& f) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      ncclComm_t comm;
      ASSERT_EQ(ncclCommInitRankConfig(&comm, ranks, id, rank, nullptr), ncclSuccess) << ncclGetLastError(nullptr);
      f(comm, rank);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    });
  for (std::thread& thread : threads) thread.join();
}

// Numbers whose sum depends on the order in which they are added.
float number(int rank, size_t i) {
  float size = rank == 1 ? 1e6f : 1.1f + float(rank);
  return (rank % 2 ? -size : size) * float(i % 1000 + 1);
}

std::vector<float> numbers(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i++) values[i] = number(rank, i);
  return values;
}

std::vector<float> sums_in_order(int ranks, size_t count) {
  std::vector<float> sums = numbers(0, count);
  for (int rank = 1; rank < ranks; rank++) {
    std::vector<float> values = numbers(rank, count);
    for (size_t i = 0; i < count; i++) sums[i] += values[i];
  }
  return sums;
}

// One element, less than a slot of shared memory, more than a slot, exactly one.
const size_t COUNTS[] = {1, 1000, 300001, 1 << 18};

TEST(StandIn, AllReduceSumsInTheOrderOfTheRanks) {
  if (!on_cpu) GTEST_SKIP() << "several ranks on one GPU";
  for (int ranks : {1, 2, 3, 4})
    at_ranks(ranks, [&](ncclComm_t comm, int rank) {
      for (size_t count : COUNTS) {
        std::vector<float> x = numbers(rank, count), apart(count);
        EXPECT_EQ(ncclAllReduce(x.data(), apart.data(), count, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
        EXPECT_TRUE(x == numbers(rank, count));
        EXPECT_EQ(ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
        EXPECT_TRUE(x == sums_in_order(ranks, count)) << count;
        EXPECT_TRUE(x == apart);
      }
      double least = 5 - rank, most = 5 - rank;
      EXPECT_EQ(ncclAllReduce(&least, &least, 1, ncclFloat64, ncclMin, comm, nullptr), ncclSuccess);
      EXPECT_EQ(ncclAllReduce(&most, &most, 1, ncclFloat64, ncclMax, comm, nullptr), ncclSuccess);
      EXPECT_EQ(least, 6 - ranks);
      EXPECT_EQ(most, 5);
    });
}

// However an array is divided, reduce-scatter and all-gather give the bits of all-reduce.
TEST(StandIn, ReduceScatterAndAllGatherMakeAnAllReduce) {
  if (!on_cpu) GTEST_SKIP() << "several ranks on one GPU";
  for (int ranks : {1, 2, 3, 4})
    at_ranks(ranks, [&](ncclComm_t comm, int rank) {
      for (size_t share : COUNTS) {
        size_t count = share * size_t(ranks);
        std::vector<float> x = numbers(rank, count), own(share), all(count);
        EXPECT_EQ(ncclReduceScatter(x.data(), own.data(), share, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
        EXPECT_TRUE(x == numbers(rank, count));
        float* mine = x.data() + size_t(rank) * share;
        EXPECT_EQ(ncclReduceScatter(x.data(), mine, share, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
        EXPECT_TRUE(std::equal(own.begin(), own.end(), mine));
        EXPECT_EQ(ncclAllGather(own.data(), all.data(), share, ncclFloat32, comm, nullptr), ncclSuccess);
        EXPECT_EQ(ncclAllGather(mine, x.data(), share, ncclFloat32, comm, nullptr), ncclSuccess);
        EXPECT_TRUE(x == sums_in_order(ranks, count)) << count;
        EXPECT_TRUE(x == all);
      }
    });
}

TEST(StandIn, BroadcastAndSixteenBits) {
  if (!on_cpu) GTEST_SKIP() << "several ranks on one GPU";
  at_ranks(3, [&](ncclComm_t comm, int rank) {
    std::vector<uint8_t> bytes(3 << 20, uint8_t(rank + 1));
    EXPECT_EQ(ncclBroadcast(bytes.data(), bytes.data(), bytes.size(), ncclUint8, 2, comm, nullptr), ncclSuccess);
    EXPECT_EQ(bytes, std::vector<uint8_t>(bytes.size(), 3));
    std::vector<uint16_t> x(3 * 700000, uint16_t(rank));
    EXPECT_EQ(ncclAllGather(&x[size_t(rank) * 700000], x.data(), 700000, ncclBfloat16, comm, nullptr), ncclSuccess);
    for (size_t i = 0; i < x.size(); i++) ASSERT_EQ(x[i], i / 700000);
  });
}

TEST(StandIn, DifferentCallsAreAnErrorAtEveryRank) {
  if (!on_cpu) GTEST_SKIP() << "NCCL would hang";
  at_ranks(3, [&](ncclComm_t comm, int rank) {
    std::vector<float> x(8);
    size_t count = rank == 1 ? 8 : 4;
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, comm, nullptr), ncclInvalidUsage);
    expect_has(ncclGetLastError(comm), {"all-reduce of 8 elements"});
    ncclResult_t result = rank == 2 ? ncclAllGather(x.data(), x.data(), 1, ncclFloat32, comm, nullptr)
                                    : ncclBroadcast(x.data(), x.data(), 1, ncclFloat32, 0, comm, nullptr);
    EXPECT_EQ(result, ncclInvalidUsage);
    x = {float(rank)};
    EXPECT_EQ(ncclAllReduce(x.data(), x.data(), 1, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);  // still works
    EXPECT_EQ(x[0], 3);
  });
}

TEST(StandIn, RefusesImpossibleCalls) {
  if (!on_cpu) GTEST_SKIP() << "checks the replacement's own errors";
  ncclComm_t comm;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 65, id, 0, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, 2, nullptr), ncclInvalidArgument);
  ncclUniqueId wrong = {"/proc/self/exe"};
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, wrong, 1, nullptr), ncclSystemError);
  expect_has(ncclGetLastError(nullptr), {"one machine"});
  std::fill(std::begin(wrong.internal), std::end(wrong.internal), 'x');
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, wrong, 1, nullptr), ncclSystemError);
  EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// ---- the calls of the program

TEST(Comm, ValuesOfTheHostBeyondWhatIsStagedAtOnce) {
  if (!on_cpu) GTEST_SKIP() << "several ranks on one GPU";
  with_comms(2, [](Comm& comm) {
    std::vector<double> sums(20001);
    for (size_t i = 0; i < sums.size(); i++) sums[i] = double(i) * (comm.first() ? 1 : 1000);
    comm.all_reduce_sum(sums.data(), sums.size());
    for (size_t i = 0; i < sums.size(); i++) ASSERT_EQ(sums[i], 1001.0 * double(i)) << i;
    std::string text(comm.first() ? 200001 : 0, 'x');
    for (size_t i = 0; i < text.size(); i++) text[i] = char(i % 251);
    text = comm.broadcast(text);
    ASSERT_EQ(text.size(), 200001u);
    for (size_t i = 0; i < text.size(); i++) ASSERT_EQ(text[i], char(i % 251)) << i;
  });
}

// One rank: on a GPU this is NCCL.
TEST(Comm, OneRankLeavesThingsAsTheyAre) {
  Comm& comm = Comm::alone();
  double values[] = {1.5, 2};
  comm.all_reduce_sum(values, 2);
  EXPECT_EQ(values[0], 1.5);
  EXPECT_EQ(comm.all_reduce_min(3), 3);
  EXPECT_EQ(comm.broadcast(std::string("text")), "text");
  EXPECT_EQ(comm.broadcast(std::vector<int>{1, 2}), (std::vector<int>{1, 2}));
}

TEST(Comm, OneRankThroughTheLibrary) {
  ncclUniqueId id;
  ncclComm_t comm;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, nullptr), ncclSuccess);
  float *x, values[] = {1, 2, 3, 4};
  CUDA_CHECK(cudaMalloc(&x, sizeof values));
  CUDA_CHECK(cudaMemcpy(x, values, sizeof values, cudaMemcpyHostToDevice));
  EXPECT_EQ(ncclAllReduce(x, x, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclReduceScatter(x, x, 4, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclAllGather(x, x, 4, ncclFloat32, comm, nullptr), ncclSuccess);
  EXPECT_EQ(ncclBroadcast(x, x, 4, ncclFloat32, 0, comm, nullptr), ncclSuccess);
  CUDA_CHECK(cudaMemcpy(values, x, sizeof values, cudaMemcpyDeviceToHost));
  EXPECT_EQ(values[3], 4);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  CUDA_CHECK(cudaFree(x));
}

// ---- the division of arrays

TEST(Buckets, CoverEverythingOnceAndCutNoBlock) {
  for (size_t total : {1, 10, 95, 96, 100, 1000})
    for (int ranks : {1, 2, 3, 8})
      for (auto& starts : std::vector<std::vector<size_t>>{{}, {0, 40, 70}, {33, 34, 35, 90}, {1, 500, 999}}) {
        Buckets buckets(total, starts, ranks, 10);
        EXPECT_GE(buckets.padded(), total);
        EXPECT_LT(buckets.padded(), total + 10 * size_t(ranks));
        std::vector<int> owner(buckets.padded(), -1);
        for (int rank = 0; rank < ranks; rank++) {
          size_t at = 0;
          for (const Share& share : buckets.shares(rank)) {
            EXPECT_EQ(share.begin % 10, 0u);
            EXPECT_EQ(share.size % 10, 0u);
            EXPECT_EQ(share.at, at);
            at += share.size;
            for (size_t i = 0; i < share.size; i++) {
              ASSERT_EQ(owner[share.begin + i], -1);
              owner[share.begin + i] = rank;
            }
          }
          EXPECT_EQ(at, buckets.padded() / size_t(ranks));
        }
        EXPECT_EQ(std::count(owner.begin(), owner.end(), -1), 0);
        for (size_t k = 0; k < buckets.count(); k++) {
          EXPECT_GT(buckets.size(k), 0u);
          EXPECT_EQ(buckets.share(k) * size_t(ranks), buckets.size(k));
        }
      }
}

TEST(Buckets, BeginWhereTheyMay) {
  Buckets buckets(1000, {100, 300, 305, 700, 2000}, 2, 10);
  std::vector<size_t> begins;
  for (size_t k = 0; k < buckets.count(); k++) begins.push_back(buckets.begin(k));
  // rounded up, so that the gradients of a bucket are complete
  EXPECT_EQ(begins, (std::vector<size_t>{0, 100, 300, 320, 700}));
}

// ---- the environment

using Environment = std::map<std::string, std::string>;

Ranks ranks_in(const Environment& environment) {
  clearenv();  // whatever starts this program may be a rank itself
  for (auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
  return ranks_of_environment();
}

void expect_refusal(const Environment& environment, const std::string& part) {
  expect_has(error_of([&] { ranks_in(environment); }), {part});
}
void expect_rank(const Ranks& ranks, int rank, int size, int local, const std::string& address) {
  EXPECT_EQ(ranks.rank, rank);
  EXPECT_EQ(ranks.size, size);
  EXPECT_EQ(ranks.local, local);
  EXPECT_EQ(ranks.address, address);
}

TEST(Environment, OneRankAlone) {
  EXPECT_EQ(ranks_in({}).size, 1);
  EXPECT_EQ(ranks_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).size, 1);
  // The script of a batch job, and an interactive shell in it: this process is none of the job's tasks.
  EXPECT_EQ(ranks_in({{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);
  EXPECT_EQ(ranks_in({{"SLURM_JOB_ID", "7"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "1"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_PROCID", "0"}})
                .size,
            1);
}

TEST(Environment, Torchrun) {
  Environment e = {
      {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29400"}};
  Ranks ranks = ranks_in(e);
  expect_rank(ranks, 5, 8, 1, "node1");
  EXPECT_EQ(ranks.port, 29400);
  e["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(ranks_in(e).port, 29401);
  e.erase("LOCAL_RANK");
  EXPECT_EQ(ranks_in(e).local, 5);
}

TEST(Environment, Mpirun) {
  Environment e = {{"OMPI_COMM_WORLD_RANK", "3"},
                   {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"PMIX_NAMESPACE", "job@1"}};
  Ranks ranks = ranks_in(e);
  expect_rank(ranks, 3, 4, 1, "127.0.0.1");
  EXPECT_EQ(ranks.job, "job@1");
  e["PMIX_NAMESPACE"] = "job@2";
  EXPECT_NE(ranks_in(e).port, ranks.port);
  e["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  expect_refusal(e, "MASTER_ADDR");
  e["MASTER_ADDR"] = "10.0.0.1";
  EXPECT_EQ(ranks_in(e).address, "10.0.0.1");
}

TEST(Environment, MpirunOfMpich) {
  Environment e = {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
  Ranks ranks = ranks_in(e);
  expect_rank(ranks, 3, 4, 1, "127.0.0.1");
  // As long as all ranks are here. In a container the session may be one of outside, which has the number 0.
  EXPECT_EQ(ranks.job.empty(), ::getsid(0) <= 0);
  e["SLURM_STEP_NUM_TASKS"] = "2", e["SLURM_PROCID"] = "1", e["MPI_LOCALNRANKS"] = "2";  // of what starts the ranks
  expect_refusal(e, "mpirun -genv MASTER_ADDR");
  e["MASTER_ADDR"] = "10.0.0.1";
  expect_rank(ranks_in(e), 3, 4, 1, "10.0.0.1");
}

TEST(Environment, OtherLaunchers) {
  expect_refusal({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "PMI_SIZE = \"2\"");
  EXPECT_EQ(ranks_in({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).size, 1);
  Environment srun = {{"PMI_SIZE", "2"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_STEP_NODELIST", "a"}};  // --mpi=pmi2
  expect_rank(ranks_in(srun), 1, 2, 1, "a");
}

TEST(Environment, Srun) {
  Environment e = {{"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}, {"SLURM_STEP_NUM_TASKS", "16"},
                   {"SLURM_PROCID", "9"}, {"SLURM_LOCALID", "1"}, {"SLURM_STEP_NODELIST", "gpu[07-08,11]"}};
  Ranks ranks = ranks_in(e);
  expect_rank(ranks, 9, 16, 1, "gpu07");
  e["SLURM_PROCID"] = "0", e["SLURM_LOCALID"] = "0";
  EXPECT_EQ(ranks_in(e).port, ranks.port);
  e["SLURM_STEP_ID"] = "3";
  EXPECT_NE(ranks_in(e).port, ranks.port);
  e.erase("SLURM_STEP_NODELIST");
  expect_refusal(e, "SLURM_STEP_NODELIST");
}

TEST(Environment, TheFirstHostOfAList) {
  EXPECT_EQ(first_host("node"), "node");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("node[003-006,010],gpu1"), "node003");
  EXPECT_EQ(first_host("node[5,7]"), "node5");
  EXPECT_EQ(first_host("rack[1-2]node[3-4]-ib,x"), "rack1node3-ib");
  EXPECT_EQ(first_host("node[3"), "");
  EXPECT_EQ(first_host(""), "");
}

TEST(Environment, RefusesContradictions) {
  Environment good = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  auto refused = [&](const char* name, const char* value, const std::string& part) {
    Environment e = good;
    e[name] = value;
    expect_refusal(e, part);
  };
  refused("RANK", "2", "RANK = \"2\" must be a number in [0, 1]");
  refused("RANK", "", "WORLD_SIZE = \"2\"");
  refused("WORLD_SIZE", "two", "WORLD_SIZE = \"two\"");
  refused("WORLD_SIZE", "0", "WORLD_SIZE");
  refused("WORLD_SIZE", "99999999999", "WORLD_SIZE");
  refused("LOCAL_RANK", "2", "LOCAL_RANK");
  refused("MASTER_PORT", "65536", "MASTER_PORT");
  refused("MASTER_ADDR", "", "MASTER_ADDR");
}

}  // namespace
