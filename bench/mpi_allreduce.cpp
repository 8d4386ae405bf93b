// Open MPI's own all-reduce, for bench/collectives.py: in place, fp32, one JSON
// line for each size. Run by mpirun.
//
//   mpi_allreduce BYTES...

#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 1; i < argc; ++i) {
    const auto bytes = static_cast<size_t>(std::atoll(argv[i]));
    std::vector<float> data(bytes / sizeof(float));
    const auto run = [&] {
      MPI_Allreduce(
          MPI_IN_PLACE,
          data.data(),
          static_cast<int>(data.size()),
          MPI_FLOAT,
          MPI_SUM,
          MPI_COMM_WORLD);
    };
    const double seconds = 50e-6 + static_cast<double>(bytes) / 1e9;
    const int iterations = std::clamp(static_cast<int>(0.1 / seconds), 3, 5000);
    for (int k = 0; k < std::min(iterations, 100); ++k) {
      run();
    }
    std::vector<double> rounds;
    for (int round = 0; round < 5; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      for (int k = 0; k < iterations; ++k) {
        run();
      }
      rounds.push_back((MPI_Wtime() - start) * 1e6 / iterations);
    }
    std::sort(rounds.begin(), rounds.end());
    if (rank == 0) {
      std::printf(
          "{\"bytes\": %zu, \"us\": %.3f, \"best_us\": %.3f}\n",
          bytes,
          rounds[rounds.size() / 2],
          rounds[0]);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
