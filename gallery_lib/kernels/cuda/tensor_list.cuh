// Many tensors in one launch. Addresses and sizes travel by value with the launch (kernels/runtime/launch.py packs them):
// nothing is copied to the device first, and a captured CUDA graph keeps them. A block works on CHUNK neighbouring
// elements of one tensor; tensor t has the blocks from first_block[t] to first_block[t + 1]. Empty tensors have none.
#pragma once

#ifndef TENSORS
#define TENSORS 48             // of one launch: 4096 bytes of arguments are what every device takes; most take more
#endif
constexpr int CHUNK = 8192;    // a multiple of all vectors, so that alignment is the same in every chunk of a tensor
constexpr int THREADS = 256;

template <int LISTS>
struct TensorList {
    void* pointers[LISTS][TENSORS];
    long long sizes[TENSORS];
    unsigned first_block[TENSORS + 1];
    unsigned count;
};

struct Chunk {
    int tensor;
    long long start;  // the first element, counted in its tensor
    int size;         // 1 to CHUNK
};

template <int LISTS>
static __device__ __forceinline__ Chunk chunk_of_block(const TensorList<LISTS>& list) {
    int low = 0, high = list.count - 1;  // the last tensor whose first block is not after this one
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (list.first_block[middle] <= blockIdx.x)
            low = middle;
        else
            high = middle - 1;
    }
    long long start = (long long)(blockIdx.x - list.first_block[low]) * CHUNK;
    long long left = list.sizes[low] - start;
    return {low, start, int(left < CHUNK ? left : CHUNK)};
}
