"""The architectures that are known from the start, one file for each shape of layer."""

from attention_residuals.retrofit.families import normed_outputs as normed_outputs
from attention_residuals.retrofit.families import parallel as parallel
from attention_residuals.retrofit.families import plain as plain
from attention_residuals.retrofit.families import two_stacks as two_stacks
from attention_residuals.retrofit.families import vision as vision
