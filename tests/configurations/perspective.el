;;; perspective.el --- perspective  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: perspective

(require 'perspective)
(setq persp-mode-prefix-key (kbd "C-c M-p"))
(persp-mode 1)

;;; perspective.el ends here
