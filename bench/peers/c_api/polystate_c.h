/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLYSTATE_C_H
#define POLYSTATE_C_H

/* A C interface to the CUDA backend, so that a program in another language can call it beside other libraries on the
 * same tensors. It adds nothing to the operators: members, shapes, units, optionality and errors are those that
 * polystate/<operator>.hpp documents.
 *
 * Calls are asynchronous on the stream, never synchronise, and may be captured into a CUDA graph. They return 0, or
 * else the number of a polystate::error_code, with the reason in polystate_last_error(). */

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define POLYSTATE_C_API __attribute__((visibility("default")))

/* Element types. Which of them an operator is built for, its functions say; others are refused. */
typedef enum polystate_dtype { POLYSTATE_F32 = 0, POLYSTATE_F16 = 1, POLYSTATE_BF16 = 2 } polystate_dtype;

/* A tensor in device memory: extents and strides (in elements, any value) of its logical indices, as many as the
 * operand's rank. All zero: the operand is absent. */
typedef struct polystate_tensor {
  void* data;
  int64_t extents[4];
  int64_t strides[4];
} polystate_tensor;

/* Where and with what memory a call runs. Zero: the default stream, scratch allocated in stream order. */
typedef struct polystate_exec {
  void* stream;    /* cudaStream_t of the current device */
  void* workspace; /* 256-byte aligned, at least what the _workspace_bytes function says; or null */
  size_t workspace_bytes;
  int batch_invariant; /* not 0: the schedule depends on one sequence's shape alone */
} polystate_exec;

/* Reason of this thread's last call that did not return 0. Valid until the thread's next call. */
POLYSTATE_C_API const char* polystate_last_error(void);

/* "polystate 0.1.0, nvcc 13.0.88, sm 90" */
POLYSTATE_C_API const char* polystate_build(void);

/* selective_scan: data bf16, states f32 or bf16. Parameters (A, D, delta_bias) and their gradients are f32. */

typedef struct polystate_selective_scan_args {
  polystate_dtype data;
  polystate_dtype state;
  polystate_tensor u, delta;      /* (B, T, D) */
  polystate_tensor A;             /* (D, N) */
  polystate_tensor B, C;          /* (B, T, G, N) */
  polystate_tensor D;             /* (D), optional */
  polystate_tensor z;             /* (B, T, D), optional */
  polystate_tensor delta_bias;    /* (D), optional */
  polystate_tensor initial_state; /* (S, D, N), optional */
  polystate_tensor cu_seqlens;    /* (S+1), int32, optional */
  polystate_tensor y;             /* (B, T, D), out */
  polystate_tensor final_state;   /* (S, D, N), optional, out */
  int delta_softplus;
} polystate_selective_scan_args;

/* Gradients: upstream ones absent mean zero, the others absent mean not wanted. */
typedef struct polystate_selective_scan_grads {
  polystate_tensor d_y, d_final_state; /* upstream */
  polystate_tensor d_u, d_delta, d_A, d_B, d_C, d_D, d_z, d_delta_bias, d_initial_state;
} polystate_selective_scan_grads;

typedef struct polystate_selective_scan_step_args {
  polystate_dtype data;
  polystate_dtype state_type;
  polystate_tensor u, delta;            /* (B, T, D), T at most 8 */
  polystate_tensor A;                   /* (D, N) */
  polystate_tensor B, C;                /* (B, T, G, N) */
  polystate_tensor D, z, delta_bias;    /* optional, as above */
  polystate_tensor read_indices;        /* (B), int32, optional */
  polystate_tensor write_indices;       /* (B), int32, optional */
  polystate_tensor state;               /* (slots, D, N), updated in place */
  polystate_tensor y;                   /* (B, T, D), out */
  polystate_tensor intermediate_states; /* (B, T, D, N), optional, out */
  int delta_softplus;
} polystate_selective_scan_step_args;

POLYSTATE_C_API int polystate_selective_scan(const polystate_exec* exec, const polystate_selective_scan_args* args);
POLYSTATE_C_API int polystate_selective_scan_backward(const polystate_exec* exec,
                                                      const polystate_selective_scan_args* args,
                                                      const polystate_selective_scan_grads* grads);
POLYSTATE_C_API int polystate_selective_scan_step(const polystate_exec* exec,
                                                  const polystate_selective_scan_step_args* args);

/* Bytes of scratch on the current device, for a call with these operands, whose data may still be null. */
POLYSTATE_C_API int polystate_selective_scan_workspace_bytes(const polystate_exec* exec,
                                                             const polystate_selective_scan_args* args, size_t* bytes);
POLYSTATE_C_API int polystate_selective_scan_backward_workspace_bytes(const polystate_exec* exec,
                                                                      const polystate_selective_scan_args* args,
                                                                      const polystate_selective_scan_grads* grads,
                                                                      size_t* bytes);

/* causal_conv1d: data bf16; weight, bias and their gradients f32. */

typedef enum polystate_activation { POLYSTATE_NONE = 0, POLYSTATE_SILU = 1 } polystate_activation;

typedef struct polystate_causal_conv1d_args {
  polystate_dtype data;
  polystate_tensor x;             /* (B, T, D) */
  polystate_tensor weight;        /* (D, W) */
  polystate_tensor bias;          /* (D), optional */
  polystate_tensor initial_state; /* (S, W-1, D), optional */
  polystate_tensor cu_seqlens;    /* (S+1), int32, optional */
  polystate_tensor y;             /* (B, T, D), out */
  polystate_tensor final_state;   /* (S, W-1, D), optional, out */
  polystate_activation act;
} polystate_causal_conv1d_args;

typedef struct polystate_causal_conv1d_grads {
  polystate_tensor d_y, d_final_state; /* upstream */
  polystate_tensor d_x, d_weight, d_bias, d_initial_state;
} polystate_causal_conv1d_grads;

typedef struct polystate_causal_conv1d_step_args {
  polystate_dtype data;
  polystate_tensor x;                   /* (B, T, D), T at most 8 */
  polystate_tensor weight;              /* (D, W) */
  polystate_tensor bias;                /* (D), optional */
  polystate_tensor read_indices;        /* (B), int32, optional */
  polystate_tensor write_indices;       /* (B), int32, optional */
  polystate_tensor state;               /* (slots, W-1, D), updated in place */
  polystate_tensor y;                   /* (B, T, D), out */
  polystate_tensor intermediate_states; /* (B, T, W-1, D), optional, out */
  polystate_activation act;
} polystate_causal_conv1d_step_args;

POLYSTATE_C_API int polystate_causal_conv1d(const polystate_exec* exec, const polystate_causal_conv1d_args* args);
POLYSTATE_C_API int polystate_causal_conv1d_backward(const polystate_exec* exec,
                                                     const polystate_causal_conv1d_args* args,
                                                     const polystate_causal_conv1d_grads* grads);
POLYSTATE_C_API int polystate_causal_conv1d_step(const polystate_exec* exec,
                                                 const polystate_causal_conv1d_step_args* args);
POLYSTATE_C_API int polystate_causal_conv1d_backward_workspace_bytes(const polystate_exec* exec,
                                                                     const polystate_causal_conv1d_args* args,
                                                                     const polystate_causal_conv1d_grads* grads,
                                                                     size_t* bytes);

#if defined(__cplusplus)
}
#endif

#endif
