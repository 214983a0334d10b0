/* One-sided operations of MPI between all ranks: Put, Get, atomics and flushes. Every value is compared. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int is_right, const char *what)
{
	if (!is_right) {
		fprintf(stderr, "%s: wrong data\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

int main(int argc, char **argv)
{
	enum { MOST = 1 << 20, ADDS = 200 };
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	unsigned char *memory, *local = malloc(MOST), *read_back = malloc(MOST);
	MPI_Win window;
	MPI_Win_allocate(MOST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	MPI_Win_lock_all(0, window);
	for (int size = 1; size <= MOST; size *= 32) {
		for (int i = 0; i < size; i++)
			local[i] = (unsigned char)(rank * 29 + i + size);
		MPI_Put(local, size, MPI_BYTE, next, 0, size, MPI_BYTE, window);
		/* A flush means that the data is in the memory of the peer. */
		MPI_Win_flush(next, window);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_sync(window);
		for (int i = 0; i < size; i++)
			check(memory[i] == (unsigned char)(previous * 29 + i + size), "Put");
		memset(read_back, 0xff, MOST);
		MPI_Get(read_back, size, MPI_BYTE, next, 0, size, MPI_BYTE, window);
		MPI_Win_flush(next, window);
		check(!memcmp(read_back, local, size), "Get");
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Win_unlock_all(window);

	long *counters, one = 1, old;
	MPI_Win counter_window;
	MPI_Win_allocate(2 * sizeof *counters, sizeof *counters, MPI_INFO_NULL, MPI_COMM_WORLD, &counters, &counter_window);
	counters[0] = counters[1] = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, counter_window);
	char *seen = calloc(ranks, ADDS);
	for (int i = 0; i < ADDS; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, counter_window);
		MPI_Win_flush(0, counter_window);
		check(old >= 0 && old < (long)ranks * ADDS && !seen[old], "Fetch_and_op");
		seen[old] = 1;
	}
	/* One rank wins. */
	long none = 0, mine = rank + 1;
	MPI_Compare_and_swap(&mine, &none, &old, MPI_LONG, 0, 1, counter_window);
	MPI_Win_flush(0, counter_window);
	int is_winner = old == 0, winners;
	MPI_Allreduce(&is_winner, &winners, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check(winners == 1, "Compare_and_swap");
	MPI_Allreduce(MPI_IN_PLACE, seen, ranks * ADDS, MPI_CHAR, MPI_MAX, MPI_COMM_WORLD);
	for (int i = 0; i < ranks * ADDS; i++)
		check(seen[i], "values of Fetch_and_op");
	MPI_Win_unlock_all(counter_window);
	MPI_Win_free(&counter_window);
	MPI_Win_free(&window);
	if (rank == 0)
		printf("one-sided operations of %d ranks: results correct\n", ranks);
	MPI_Finalize();
	return 0;
}
