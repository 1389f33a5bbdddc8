"""Muon: momentum whose matrix is made orthogonal before the step (Jordan et al., 2024).

torch.optim.Muon computes in bf16 one matrix at a time, which takes ten seconds a step on a CPU without bf16 units and
is all launch overhead on a GPU. Here matrices of one shape are stacked, and the precision is the device's best.
"""

import torch

import forward

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic whose fixed points are near singular values of one
ITERATIONS = 5


def orthogonal(stack):
    """The nearest orthogonal matrix to each of a stack (n, rows, columns), within about 20 % a singular value."""
    a, b, c = COEFFICIENTS
    x = stack.to(torch.bfloat16) if stack.is_cuda or forward.dtype == torch.bfloat16 else stack
    tall = x.size(-2) > x.size(-1)
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(stack.dtype)


class Muon(torch.optim.Optimizer):
    """Steps have the size that AdamW's would have (0.2 in the root mean square), so that rates carry over."""

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.05):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                shapes.setdefault(p.shape, []).append(p)
            for (rows, columns), same in shapes.items():
                moves = orthogonal(torch.stack(self._momentum(same, group["momentum"])))
                size = 0.2 * max(rows, columns) ** 0.5
                torch._foreach_mul_(same, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(same, list(moves), alpha=-group["lr"] * size)

    def _momentum(self, matrices, share):
        for p in matrices:
            if "buffer" not in self.state[p]:
                self.state[p]["buffer"] = torch.zeros_like(p)
        buffers, grads = [self.state[p]["buffer"] for p in matrices], [p.grad for p in matrices]
        torch._foreach_lerp_(buffers, grads, 1 - share)
        return torch._foreach_lerp(grads, buffers, share)
