/* SPDX-License-Identifier: MIT
 *
 * Control for widths.py: each kernel must show the instructions that its name says, and no others
 * of their kind. If one does not, the table in widths.py is not true of this toolkit.
 */
__global__ void words(const float *from, float *to) {
    to[threadIdx.x] = from[threadIdx.x];
}

__global__ void pairs(const float2 *from, float2 *to) {
    to[threadIdx.x] = from[threadIdx.x];
}

__global__ void quads(const float4 *from, float4 *to) {
    __stcs(to + threadIdx.x, __ldcs(from + threadIdx.x));
}

__global__ void strong(const float *from, float *to) {
    to[threadIdx.x] = *(const volatile float *)(from + threadIdx.x);
}

/* An array with a moving index cannot lie in registers. */
__global__ void spilled(const float *from, float *to, int n) {
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = from[threadIdx.x * 64 + i];
    for (int i = 0; i < n; i++)
        x[i * 7 & 63] += x[(i * 13 + n) & 63];
    to[threadIdx.x] = x[n & 63];
}
