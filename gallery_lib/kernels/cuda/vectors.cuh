// Several neighbouring elements in one memory access of up to 16 bytes, which needs an address that is a multiple of it.
#pragma once

template <class T, int COUNT>
struct alignas(sizeof(T) * COUNT) Vector {
    T at[COUNT];
};

template <int COUNT, class T>
static __device__ __forceinline__ Vector<T, COUNT> load_vector(const T* address) {
    return *reinterpret_cast<const Vector<T, COUNT>*>(address);
}

template <int COUNT, class T>
static __device__ __forceinline__ void store_vector(T* address, const Vector<T, COUNT>& value) {
    *reinterpret_cast<Vector<T, COUNT>*>(address) = value;
}

template <int COUNT, class T>
static __device__ __forceinline__ bool is_aligned(const T* address) {
    return reinterpret_cast<unsigned long long>(address) % (sizeof(T) * COUNT) == 0;
}

// How many elements lie before the first address that is a multiple of 16.
template <class T>
static __device__ __forceinline__ int elements_before_boundary(const T* address) {
    return int((16 - reinterpret_cast<unsigned long long>(address) % 16) % 16 / sizeof(T));
}
