#include "ranks/ranks.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

int number(const char* name, int least, int most) {
  std::string text = variable(name);
  int value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    user_error(
        "environment: %s = \"%.40s\" must be a number in [%d, %d]; start all ranks with torchrun, mpirun or "
        "srun, or unset it",
        name, text.c_str(), least, most);
  return value;
}

// A port that every user may listen at, below those that systems choose themselves. Equal for all ranks of a job.
int port_of(const std::string& job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (unsigned char c : job) hash = (hash ^ c) * 16777619u;
  return 20000 + int(hash % 10000);
}

constexpr int MOST = 65536;  // ranks

Ranks read(const char* rank, const char* size, const char* local) {
  Ranks ranks;
  ranks.size = number(size, 1, MOST);
  ranks.rank = number(rank, 0, ranks.size - 1);
  ranks.local = variable(local).empty() ? ranks.rank : number(local, 0, ranks.rank);
  ranks.variables = format("%s, %s", rank, size);
  return ranks;
}

}  // namespace

std::string first_host(const std::string& nodes) {
  std::string host;
  for (size_t i = 0; i < nodes.size() && nodes[i] != ','; i++) {
    if (nodes[i] != '[') {
      host += nodes[i];
      continue;
    }
    size_t end = nodes.find(']', i), first = nodes.find_first_of("-,]", i);
    if (end == std::string::npos) return "";
    host += nodes.substr(i + 1, first - i - 1);
    i = end;
  }
  return host;
}

Ranks ranks_of_environment() {
  Ranks ranks;
  std::string address = variable("MASTER_ADDR");
  if (!variable("RANK").empty() || !variable("WORLD_SIZE").empty()) {
    ranks = read("RANK", "WORLD_SIZE", "LOCAL_RANK");
    ranks.job = variable("TORCHELASTIC_RUN_ID");
    if (ranks.size > 1 && address.empty())
      user_error(
          "environment: WORLD_SIZE = %d, but MASTER_ADDR is not set; set it to the address of rank 0 (127.0.0.1 "
          "if all ranks run on one machine)",
          ranks.size);
  } else if (!variable("OMPI_COMM_WORLD_RANK").empty()) {
    ranks = read("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
    ranks.job = variable("PMIX_NAMESPACE");
    bool here = variable("OMPI_COMM_WORLD_LOCAL_SIZE") == variable("OMPI_COMM_WORLD_SIZE");
    if (address.empty() && here) address = "127.0.0.1";
    if (ranks.size > 1 && address.empty())
      user_error(
          "environment: mpirun has started ranks on several machines, but MASTER_ADDR is not set; give the "
          "address of rank 0: mpirun -x MASTER_ADDR=...");
  } else if (!variable("SLURM_STEP_ID").empty() && !variable("SLURM_STEP_NUM_TASKS").empty() &&
             variable("SLURM_STEP_NUM_TASKS") != "1") {
    ranks = read("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID");
    ranks.job = variable("SLURM_JOB_ID") + "." + variable("SLURM_STEP_ID");
    if (address.empty()) address = first_host(variable("SLURM_STEP_NODELIST"));
    if (address.empty())
      user_error(
          "environment: SLURM_STEP_NODELIST = \"%.80s\" names no machine; set MASTER_ADDR to the address of "
          "rank 0",
          variable("SLURM_STEP_NODELIST").c_str());
  }
  ranks.address = address;
  ranks.port = variable("MASTER_PORT").empty() ? port_of(ranks.job) : number("MASTER_PORT", 1, 65534);
  // torchrun itself listens at MASTER_PORT then.
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ranks.port++;
  if (ranks.size == 1) ranks = {};
  if (!variable("PLUSGPT_PATIENCE").empty()) ranks.patience = number("PLUSGPT_PATIENCE", 1, 86400);
  return ranks;
}
