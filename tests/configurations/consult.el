;;; consult.el --- Consult in Vertico  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: vertico consult

(require 'vertico)
(require 'consult)
(vertico-mode 1)
(global-set-key [remap switch-to-buffer] #'consult-buffer)
(setq completion-in-region-function #'consult-completion-in-region
      xref-show-xrefs-function #'consult-xref)

;;; consult.el ends here
