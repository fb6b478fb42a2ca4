"""Packing rules for jobs with fractions of GPUs: what part of a cluster's GPUs each one fills.

python -m experiments.packing pods=openb_pod_list_default.csv nodes=openb_node_list_gpu_node.csv

Pods are drawn at random with replacement until they ask for `load` times the cluster's GPUs; they
arrive one after the other, stay if they fit, and never leave (Weng et al., USENIX ATC 2023).
"""

from experiments.command_line import main_of

main = main_of("packing", __name__)
