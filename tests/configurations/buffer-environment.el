;;; buffer-environment.el --- An environment of each buffer, as of envrc  -*- lexical-binding: t; -*-
;; SPDX-License-Identifier: GPL-3.0-or-later

(setenv "PATH" "/usr/bin:/bin")
(defconst whole-path exec-path)
(setq exec-path '("/usr/bin" "/bin"))

;; As envrc does where it has asked direnv.
(defun set-environment-of-buffer ()
  "Let programs of this buffer find the CLI."
  (setq-local exec-path whole-path
              process-environment
              (append (list (concat "PATH=" (string-join (remq nil whole-path) ":")) "FROM_DIRENV=1")
                      process-environment)))
(add-hook 'find-file-hook #'set-environment-of-buffer)

;;; buffer-environment.el ends here
