// L2 norm of many tensors together, and whether any element is infinite or NaN, reading each element once.
// ELEMENT: float, __nv_bfloat16 or __half. The order of summation is fixed: the same input gives the same bits.
#include "scalars.cuh"
#include "tensor_list.cuh"
#include "sum_of_squares.cuh"
#include "vectors.cuh"

constexpr int WIDTH = 16 / sizeof(ELEMENT);

struct SquaresArguments {
    TensorList<1> tensors;
    double* partial;  // one sum for each block
};

extern "C" __global__ void __launch_bounds__(THREADS) sum_squares(const __grid_constant__ SquaresArguments arguments) {
    __shared__ double scratch[THREADS / 32];
    Chunk chunk = chunk_of_block(arguments.tensors);
    const ELEMENT* elements = static_cast<const ELEMENT*>(arguments.tensors.pointers[0][chunk.tensor]) + chunk.start;
    SumOfSquares sum;

    int head = min(elements_before_boundary(elements), chunk.size);
    int vectors = (chunk.size - head) / WIDTH;
    if (int(threadIdx.x) < head) sum.add(to_float(elements[threadIdx.x]));
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        auto vector = load_vector<WIDTH>(elements + head + i * WIDTH);
        for (int lane = 0; lane < WIDTH; lane++) sum.add(to_float(vector.at[lane]));
    }
    int tail = head + vectors * WIDTH + threadIdx.x;
    if (tail < chunk.size) sum.add(to_float(elements[tail]));

    double total = block_sum(sum.total(), scratch);
    if (threadIdx.x == 0) arguments.partial[blockIdx.x] = total;
}

struct FinishArguments {
    const double* partial;
    long long count;
    float* norm;
    float* found_inf;
};

extern "C" __global__ void __launch_bounds__(THREADS) finish_norm(const __grid_constant__ FinishArguments arguments) {
    __shared__ double scratch[THREADS / 32];
    double sum = 0;
    for (long long i = threadIdx.x; i < arguments.count; i += THREADS) sum += arguments.partial[i];
    double total = block_sum(sum, scratch);
    if (threadIdx.x == 0) {
        *arguments.norm = float(sqrt(total));
        *arguments.found_inf = isfinite(total) ? 0.0f : 1.0f;
    }
}
