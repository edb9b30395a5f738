;;; same-window.el --- All buffers in the selected window  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setq display-buffer-alist '(("." (display-buffer-same-window)))
      switch-to-buffer-obey-display-actions t)

;;; same-window.el ends here
