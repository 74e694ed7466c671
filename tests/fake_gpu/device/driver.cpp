// The driver's functions that torch, cuda-core and Triton ask for and that are no launch. Most pass
// on to the runtime's.
#include "device.h"

#include <dlfcn.h>

using namespace fake;

namespace {

constexpr uintptr_t CONTEXTS = 0x1000;  // a context is this number and its device's

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(CONTEXTS + device); }

}  // namespace

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }
API CUresult cuDriverGetVersion(int* version) { return static_cast<CUresult>(cudaDriverGetVersion(version)); }
API CUresult cuDeviceGetCount(int* number) { return static_cast<CUresult>(cudaGetDeviceCount(number)); }
API CUresult cuDeviceGet(CUdevice* device, int number) {
    *device = number;
    return number < devices() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetName(char* name, int bytes, CUdevice) {
    snprintf(name, bytes, "%s", NAME);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}
API CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
    return static_cast<CUresult>(cudaDeviceGetPCIBusId(text, bytes, device));
}
API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
    size_t free_bytes;
    return static_cast<CUresult>(cudaMemGetInfo(&free_bytes, bytes));
}
API CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    return static_cast<CUresult>(cudaMemGetInfo(free_bytes, total));
}
API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    return static_cast<CUresult>(
        cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    if (flags) *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    note_use("context");
    *context = context_of(device);
    return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
API CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = context_of(current_device());
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetCurrent(CUcontext context) {
    if (context) make_current(static_cast<int>(reinterpret_cast<uintptr_t>(context) - CONTEXTS));
    return CUDA_SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(CUcontext context) { return cuCtxSetCurrent(context); }
API CUresult cuCtxPopCurrent_v2(CUcontext* context) { return cuCtxGetCurrent(context); }
API CUresult cuCtxGetDevice(CUdevice* device) {
    *device = current_device();
    return CUDA_SUCCESS;
}
API CUresult cuCtxGetLimit(size_t* value, CUlimit) {
    *value = 1 << 20;
    return CUDA_SUCCESS;
}
API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return static_cast<CUresult>(cudaDeviceSynchronize()); }
API CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    *context = context_of(stream_of(stream)->device);
    return CUDA_SUCCESS;
}
API CUresult cuStreamSynchronize(CUstream stream) {
    return static_cast<CUresult>(cudaStreamSynchronize(stream));
}
API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return static_cast<CUresult>(
        cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
    int device = 0;
    const char* kind = kind_of_memory(reinterpret_cast<void*>(address), &device);
    if (!kind) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = address; break;
        case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(value) = context_of(device); break;
        default: *static_cast<int*>(value) = device;
    }
    return CUDA_SUCCESS;
}
API CUresult cuMemsetD32Async(CUdeviceptr address, unsigned value, size_t number, CUstream stream) {
    auto* words = reinterpret_cast<unsigned*>(address);
    return static_cast<CUresult>(enqueue(stream_of(stream), [=] {
        for (size_t each = 0; each < number; each++) words[each] = value;
        return cudaSuccess;
    }));
}
API CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = cudaGetErrorString(static_cast<cudaError_t>(error));
    return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult error, const char** text) {
    *text = cudaGetErrorName(static_cast<cudaError_t>(error));
    return CUDA_SUCCESS;
}

// ---- how the functions above are found

API CUresult cuGetProcAddress_v2(const char* name, void** function, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult* result) {
    *function = nullptr;
    for (const char* version : {"_v3", "_v2", ""})
        if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str());
    if (!*function && getenv("FAKE_GPU_LOG")) fprintf(stderr, "fake GPU: there is no %s\n", name);
    if (result)
        *result = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                                 unsigned long long, cudaDriverEntryPointQueryResult* result) {
    CUdriverProcAddressQueryResult found;
    cuGetProcAddress_v2(name, function, 0, 0, &found);
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
