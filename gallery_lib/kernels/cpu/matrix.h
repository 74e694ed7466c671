// A batch [N, C, H, W] in channels_last as a matrix, rows of C channels, and its division among threads. The division depends on the
// sizes only. So the order of every sum, and each bit of a result, is the same for any number of threads.
#pragma once
#include <algorithm>
#include <cstdint>

constexpr int64_t TILE = 2048;        // channels side by side, at most: what is kept of them fits the first cache
constexpr int64_t GROUP = 8;          // rows that are added up in fp32 before they go into a sum in fp64
constexpr int64_t PART = 1 << 17;     // elements of a part of the matrix
constexpr int64_t FEWEST_ROWS = 64;   // of a part

struct Matrix {
    int64_t rows, channels, tiles, rows_per_slab, slabs;  // a part is a slab of rows and a tile of channels

    Matrix(int64_t rows, int64_t channels) : rows(rows), channels(channels) {
        tiles = (channels + TILE - 1) / TILE;
        rows_per_slab = std::max(FEWEST_ROWS, PART / std::max<int64_t>(1, std::min(TILE, channels)) / GROUP * GROUP);
        slabs = (rows + rows_per_slab - 1) / rows_per_slab;
    }

    int64_t rows_of(int64_t slab) const { return std::min(rows_per_slab, rows - slab * rows_per_slab); }
};

struct Part {
    int64_t slab, row, end, from, to;  // rows from `row` to `end`, channels from `from` to `to`
};

// Calls work(part) for all parts. Each thread has neighbouring ones, and begins with the last of them where `backwards`: a pass that
// goes the other way than the one before it finds in the cache what that one touched last.
template <class Work>
static void in_parallel(const Matrix& m, int64_t most_threads, bool backwards, Work work) {
    const int64_t parts = m.slabs * m.tiles, threads = std::max<int64_t>(1, std::min(most_threads, parts));
#pragma omp parallel for num_threads(int(threads)) schedule(static) if (threads > 1)
    for (int64_t thread = 0; thread < threads; thread++) {
        const int64_t begin = parts * thread / threads, end = parts * (thread + 1) / threads;
        for (int64_t k = begin; k < end; k++) {
            const int64_t number = backwards ? begin + end - 1 - k : k, slab = number / m.tiles, from = number % m.tiles * TILE;
            const int64_t row = slab * m.rows_per_slab;
            work(Part{slab, row, row + m.rows_of(slab), from, std::min(m.channels, from + TILE)});
        }
    }
}
