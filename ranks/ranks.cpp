#include "ranks/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>

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

// A launcher, by the variables it sets for every rank; "": it has none for that.
struct Launcher {
  const char* sign;  // set by no other launcher; the first row whose sign is set counts
  const char *rank, *size, *local;
  const char* local_size;  // the ranks on this machine; if these are all, rank 0 is here too
  const char* nodes;       // the machines, rank 0's first
  const char *job, *step;  // its id
  const char* address;     // how to give the address of rank 0
};
// If mpirun starts its ranks through srun, they have the variables of both, and srun's number the machines.
constexpr Launcher LAUNCHERS[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "", "", "TORCHELASTIC_RUN_ID", "",
     "127.0.0.1 if all ranks run on one machine"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "PMIX_NAMESPACE", "", "mpirun -x MASTER_ADDR=..."},
    {"MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "", "",
     "mpirun -genv MASTER_ADDR ..."},
    {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_STEP_NODELIST",
     "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR=... srun"},
};
// Names of the number of ranks in launchers that have no row; also used if RANK is missing.
constexpr const char* OTHER_SIZES[] = {"WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE"};

// MPICH and Intel MPI name no job. But all ranks of a machine are in one session, or each leads one: this is the number
// of its leader's parent.
std::string parent_of_session() {
  std::ifstream file(format("/proc/%d/stat", int(::getsid(0))));
  std::string stat, parent;
  std::getline(file, stat, ')');  // the name, which may hold spaces; then " S PARENT"
  file >> stat >> parent;
  return parent;
}

Ranks read(const Launcher& l) {
  Ranks ranks;
  ranks.size = number(l.size, 1, MOST);
  ranks.rank = number(l.rank, 0, ranks.size - 1);
  ranks.local = variable(l.local).empty() ? ranks.rank : number(l.local, 0, ranks.rank);
  ranks.variables = format("%s, %s", l.rank, l.size);
  ranks.address = variable("MASTER_ADDR");
  bool here = *l.local_size && variable(l.local_size) == variable(l.size);
  if (ranks.address.empty()) ranks.address = here ? "127.0.0.1" : first_host(variable(l.nodes));
  if (ranks.size > 1 && ranks.address.empty())
    user_error("environment: %s = %d, but %s; set MASTER_ADDR to the address of rank 0 (%s)", l.size, ranks.size,
               *l.nodes ? format("%s = \"%.80s\" names no machine", l.nodes, variable(l.nodes).c_str()).c_str()
                        : "the ranks may be on several machines, and MASTER_ADDR is not set",
               l.address);
  ranks.job = variable(l.job) + (*l.step ? "." + variable(l.step) : "");
  if (!*l.job && here) ranks.job = parent_of_session();
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
  auto known = [](const Launcher& l) { return !variable(l.sign).empty(); };
  if (auto launcher = std::find_if(std::begin(LAUNCHERS), std::end(LAUNCHERS), known); launcher != std::end(LAUNCHERS))
    ranks = read(*launcher);
  else
    for (const char* size : OTHER_SIZES)
      if (!variable(size).empty() && variable(size) != "1")
        user_error(
            "environment: %s = \"%.40s\", but no variable that this program reads tells the ranks apart; set RANK, "
            "WORLD_SIZE, LOCAL_RANK (its number on its machine) and MASTER_ADDR (rank 0's address) for every rank, "
            "or start them with torchrun, mpirun or srun",
            size, variable(size).c_str());
  ranks.port = variable("MASTER_PORT").empty() ? port_of(ranks.job) : number("MASTER_PORT", 1, 65534);
  // torchrun itself listens at MASTER_PORT then.
  if (variable("TORCHELASTIC_USE_AGENT_STORE") == "True") ranks.port++;
  if (ranks.size == 1) ranks = {};
  if (!variable("PLUSGPT_TIMEOUT").empty()) ranks.timeout = number("PLUSGPT_TIMEOUT", 1, MOST_TIMEOUT);
  return ranks;
}
