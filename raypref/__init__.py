"""raypref: federated, personalized preference learning on Ray.

Reference implementation of two papers, cited throughout as

* S2, *FedGD*: Kim et al., "Rethinking Personalized Reward Modeling for LLMs under Preference Heterogeneity via
  Group-Debiased Federated Learning", arXiv 2608.01556.
* S1, *FedVPA-GP*: Koo et al., "Federated Variational Preference Alignment with Gumbel-Softmax Prior for Personalized
  User Preferences", ICML 2026, arXiv 2605.30873.
"""

__version__ = "0.1.0"
