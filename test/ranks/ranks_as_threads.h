// Ranks that are threads of a test.
#pragma once
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "ranks/comm.h"
#include "ranks/ranks.h"

// Calls f(comm) at every rank.
inline void with_comms(int size, const std::function<void(Comm&)>& f) {
  for (const char* name : {"NCCL_NVLS_ENABLE", "NCCL_ALGO"}) setenv(name, "", 0);  // here, because threads must not
  Ranks first;
  first.size = size;
  first.address = "127.0.0.1";
  first.listener = listen_at(first.address, 0, &first.port);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      Ranks mine = first;
      mine.rank = rank;
      Links links(mine);
      {
        Comm comm(mine, links);
        f(comm);
      }
      links.end(0, "");
    });
  for (std::thread& thread : threads) thread.join();
}
