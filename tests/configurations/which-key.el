;;; which-key.el --- which-key  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: which-key

(require 'which-key)
(setq which-key-idle-delay 0.1)
(which-key-mode 1)

;;; which-key.el ends here
