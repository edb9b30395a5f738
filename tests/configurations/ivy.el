;;; ivy.el --- Ivy and Counsel  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later
;; Packages: ivy counsel

(require 'counsel)
(ivy-mode 1)
(counsel-mode 1)

;;; ivy.el ends here
