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
  int64_t extents[5];
  int64_t strides[5];
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

/* gated_delta_rule: rule gated_delta; data bf16; dk, dv 128, 128 or 256, 512; states f32, of a step f32 or bf16. Gates
 * and their gradients are f32. */

typedef struct polystate_gated_delta_rule_args {
  polystate_dtype data;
  polystate_dtype state;
  polystate_tensor q, k;          /* (B, T, HK, dk) */
  polystate_tensor v;             /* (B, T, HV, dv) */
  polystate_tensor g, beta;       /* (B, T, HV) */
  polystate_tensor initial_state; /* (S, HV, dv, dk), optional */
  polystate_tensor cu_seqlens;    /* (S+1), int32, optional */
  polystate_tensor o;             /* (B, T, HV, dv), out */
  polystate_tensor final_state;   /* (S, HV, dv, dk), optional, out */
  double scale;
  int qk_l2norm; /* with the default l2norm_eps */
} polystate_gated_delta_rule_args;

/* Gradients: upstream ones absent mean zero, the others absent mean not wanted. */
typedef struct polystate_gated_delta_rule_grads {
  polystate_tensor d_o, d_final_state; /* upstream */
  polystate_tensor d_q, d_k, d_v, d_g, d_beta, d_initial_state;
} polystate_gated_delta_rule_grads;

typedef struct polystate_gated_delta_rule_step_args {
  polystate_dtype data;
  polystate_dtype state_type;
  polystate_tensor q, k;                /* (B, T, HK, dk), T at most 8 */
  polystate_tensor v;                   /* (B, T, HV, dv) */
  polystate_tensor g, beta;             /* (B, T, HV) */
  polystate_tensor read_indices;        /* (B), int32, optional */
  polystate_tensor write_indices;       /* (B), int32, optional */
  polystate_tensor state;               /* (slots, HV, dv, dk), updated in place */
  polystate_tensor o;                   /* (B, T, HV, dv), out */
  polystate_tensor intermediate_states; /* (B, T, HV, dv, dk), optional, out */
  double scale;
  int qk_l2norm;
} polystate_gated_delta_rule_step_args;

POLYSTATE_C_API int polystate_gated_delta_rule(const polystate_exec* exec, const polystate_gated_delta_rule_args* args);
POLYSTATE_C_API int polystate_gated_delta_rule_backward(const polystate_exec* exec,
                                                        const polystate_gated_delta_rule_args* args,
                                                        const polystate_gated_delta_rule_grads* grads);
POLYSTATE_C_API int polystate_gated_delta_rule_step(const polystate_exec* exec,
                                                    const polystate_gated_delta_rule_step_args* args);
POLYSTATE_C_API int polystate_gated_delta_rule_backward_workspace_bytes(const polystate_exec* exec,
                                                                        const polystate_gated_delta_rule_args* args,
                                                                        const polystate_gated_delta_rule_grads* grads,
                                                                        size_t* bytes);

/* ssd: data bf16; states f32, of a step f32 or bf16. Parameters (A, D, dt_bias) and their gradients are f32. The step
 * length is not clamped. */

typedef struct polystate_ssd_args {
  polystate_dtype data;
  polystate_dtype state;
  polystate_tensor x;             /* (B, T, H, P) */
  polystate_tensor dt;            /* (B, T, H) */
  polystate_tensor A;             /* (H) */
  polystate_tensor B, C;          /* (B, T, G, N) */
  polystate_tensor D;             /* (H, P), optional */
  polystate_tensor z;             /* (B, T, H, P), optional */
  polystate_tensor dt_bias;       /* (H), optional */
  polystate_tensor initial_state; /* (S, H, P, N), optional */
  polystate_tensor cu_seqlens;    /* (S+1), int32, optional */
  polystate_tensor y;             /* (B, T, H, P), out */
  polystate_tensor final_state;   /* (S, H, P, N), optional, out */
  int dt_softplus;
} polystate_ssd_args;

/* Gradients: upstream ones absent mean zero, the others absent mean not wanted. d_D is (H, P) or (H, 1). */
typedef struct polystate_ssd_grads {
  polystate_tensor d_y, d_final_state; /* upstream */
  polystate_tensor d_x, d_dt, d_A, d_B, d_C, d_D, d_z, d_dt_bias, d_initial_state;
} polystate_ssd_grads;

typedef struct polystate_ssd_step_args {
  polystate_dtype data;
  polystate_dtype state_type;
  polystate_tensor x;                   /* (B, T, H, P), T at most 8 */
  polystate_tensor dt;                  /* (B, T, H) */
  polystate_tensor A;                   /* (H) */
  polystate_tensor B, C;                /* (B, T, G, N) */
  polystate_tensor D, z, dt_bias;       /* optional, as above */
  polystate_tensor read_indices;        /* (B), int32, optional */
  polystate_tensor write_indices;       /* (B), int32, optional */
  polystate_tensor state;               /* (slots, H, P, N), updated in place */
  polystate_tensor y;                   /* (B, T, H, P), out */
  polystate_tensor intermediate_states; /* (B, T, H, P, N), optional, out */
  int dt_softplus;
} polystate_ssd_step_args;

POLYSTATE_C_API int polystate_ssd(const polystate_exec* exec, const polystate_ssd_args* args);
POLYSTATE_C_API int polystate_ssd_backward(const polystate_exec* exec, const polystate_ssd_args* args,
                                           const polystate_ssd_grads* grads);
POLYSTATE_C_API int polystate_ssd_step(const polystate_exec* exec, const polystate_ssd_step_args* args);
POLYSTATE_C_API int polystate_ssd_backward_workspace_bytes(const polystate_exec* exec, const polystate_ssd_args* args,
                                                           const polystate_ssd_grads* grads, size_t* bytes);

/* multi_state: rule gated_delta, uniform segments, router merlin with plain moments divided by m; data bf16. Forward:
 * dk, dv 128, 128 or 256, 512. Step and read: bf16 states, dk, dv 256, 512. Gates, weights and moments are f32. */

typedef struct polystate_merlin {
  polystate_tensor q;                 /* (B, T, HR, dr), q' */
  polystate_tensor gamma;             /* (B, T, H) */
  polystate_tensor tau_mu, tau_sigma; /* (H) */
} polystate_merlin;

typedef struct polystate_bank {
  polystate_tensor S;        /* (B, capacity, H, dv, dk) */
  polystate_tensor mu;       /* (B, capacity, HR, dr) */
  polystate_tensor Sigma;    /* (B, capacity, HR, dr, dr) */
  polystate_tensor counters; /* (B, 3), int64, contiguous: tokens, segments, open_tokens */
} polystate_bank;

typedef struct polystate_multi_state_args {
  polystate_dtype data;
  polystate_tensor q, k;      /* (B, T, HK, dk) */
  polystate_tensor v;         /* (B, T, H, dv) */
  polystate_tensor g, beta;   /* (B, T, H) */
  polystate_tensor moments_k; /* (B, T, HR, dr), k' */
  polystate_merlin router;
  polystate_tensor o;   /* (B, T, H, dv), out */
  polystate_tensor lam; /* (B, T, H, L), optional, out */
  int64_t m;            /* tokens of a segment */
  double scale;
} polystate_multi_state_args;

typedef struct polystate_multi_state_step_args {
  polystate_dtype data;
  polystate_dtype state_type;
  polystate_tensor q, k, v, g, beta, moments_k; /* as above */
  polystate_merlin router;
  polystate_bank bank; /* updated in place */
  polystate_tensor o;  /* (B, T, H, dv), optional, out */
  int64_t m;
  double scale;
} polystate_multi_state_step_args;

typedef struct polystate_multi_state_read_args {
  polystate_dtype data;
  polystate_dtype state_type;
  polystate_tensor q; /* (B, T, HK, dk) */
  polystate_merlin router;
  polystate_bank bank;
  polystate_tensor o; /* (B, T, H, dv), out */
  int64_t top_k;      /* 0: all entries; else router top_k<merlin> with this k */
  double scale;
} polystate_multi_state_read_args;

POLYSTATE_C_API int polystate_multi_state(const polystate_exec* exec, const polystate_multi_state_args* args);
POLYSTATE_C_API int polystate_multi_state_step(const polystate_exec* exec, const polystate_multi_state_step_args* args);
POLYSTATE_C_API int polystate_multi_state_read(const polystate_exec* exec, const polystate_multi_state_read_args* args);
POLYSTATE_C_API int polystate_multi_state_workspace_bytes(const polystate_exec* exec,
                                                          const polystate_multi_state_args* args, size_t* bytes);
POLYSTATE_C_API int polystate_multi_state_step_workspace_bytes(const polystate_exec* exec,
                                                               const polystate_multi_state_step_args* args,
                                                               size_t* bytes);
POLYSTATE_C_API int polystate_multi_state_read_workspace_bytes(const polystate_exec* exec,
                                                               const polystate_multi_state_read_args* args,
                                                               size_t* bytes);

#if defined(__cplusplus)
}
#endif

#endif
