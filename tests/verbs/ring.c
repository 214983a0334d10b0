/* Messages of 1 byte to 1 MiB around a ring of MPI ranks, and an all-to-all: every byte is compared. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void wrong(const char *what)
{
	fprintf(stderr, "%s: wrong data\n", what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

int main(int argc, char **argv)
{
	enum { MOST = 1 << 20, COUNT = 1000 };
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	unsigned char *sent = malloc(MOST), *received = malloc(MOST);
	for (int size = 1; size <= MOST; size *= 32) {
		for (int i = 0; i < size; i++)
			sent[i] = (unsigned char)(rank * 31 + i);
		memset(received, 0xff, MOST);
		MPI_Sendrecv(sent, size, MPI_BYTE, next, size, received, size, MPI_BYTE, previous, size, MPI_COMM_WORLD,
			MPI_STATUS_IGNORE);
		for (int i = 0; i < size; i++)
			if (received[i] != (unsigned char)(previous * 31 + i))
				wrong("ring");
	}
	int *to = malloc(sizeof(int) * ranks * COUNT), *from = malloc(sizeof(int) * ranks * COUNT);
	for (int i = 0; i < ranks * COUNT; i++)
		to[i] = rank * ranks * COUNT + i;
	MPI_Alltoall(to, COUNT, MPI_INT, from, COUNT, MPI_INT, MPI_COMM_WORLD);
	for (int peer = 0; peer < ranks; peer++)
		for (int i = 0; i < COUNT; i++)
			if (from[peer * COUNT + i] != (peer * ranks + rank) * COUNT + i)
				wrong("all-to-all");
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("ring and all-to-all of %d ranks: results correct\n", ranks);
	MPI_Finalize();
	return 0;
}
