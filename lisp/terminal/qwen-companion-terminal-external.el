;;; qwen-companion-terminal-external.el --- CLIs in a terminal outside of Emacs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A terminal program of the desktop, by a template of its command.  A buffer
;; stands for it in Emacs as long as the program runs.  Reviews work there as
;; in a terminal of Emacs, and prompts go to the file that the CLI reads them
;; from.  Commands that type into the terminal do not work there.

;;; Code:

(require 'qwen-companion-terminal)

(defcustom qwen-companion-terminal-external-command '("xterm" "-e" "%c")
  "The program and arguments that open a terminal of the desktop.
The element \"%c\" stands for the program and arguments of the CLI, and
%d in any element for the directory, in which it is also started.  Prompts
can be sent to the CLI if the program runs as long as its terminal."
  :group 'qwen-companion
  :type '(repeat :tag "Program and arguments" string))

(cl-defmethod qwen-companion-terminal-start ((_kind (eql external)) buffer command)
  "Run COMMAND in a terminal of the desktop; BUFFER stands for it."
  (let* ((directory (directory-file-name default-directory))
         (words (cl-loop for word in qwen-companion-terminal-external-command
                         if (equal word "%c") append command
                         else collect (string-replace "%d" directory word))))
    (unless (executable-find (car words))
      (kill-buffer buffer)
      (user-error "No program `%s' found; customize `qwen-companion-terminal-external-command'"
                  (car words)))
    (with-current-buffer buffer
      (special-mode)
      (setq qwen-companion-terminal-outside t)
      (let ((inhibit-read-only t))
        (insert (format "The CLI in %s runs in %s, outside of Emacs.\n\n"
                        (abbreviate-file-name directory) (car words))
                (substitute-command-keys
                 "\\[qwen-companion-ask] sends a prompt to it.  It goes on when this buffer is killed.\n\n")))
      (add-hook 'kill-buffer-hook #'qwen-companion-terminal-external--detach nil t))
    (make-process :name (format "qwen terminal: %s" (file-name-nondirectory directory))
                  :buffer buffer :command words :connection-type 'pipe :noquery t
                  :sentinel #'qwen-companion-terminal-external--ended)
    (message "The CLI starts in %s" (car words))))

(defun qwen-companion-terminal-external--detach ()
  "Let the terminal of the current buffer, which is being killed, go on.
Emacs would send it SIGHUP, which ends some."
  (when-let* ((process (get-buffer-process (current-buffer))))
    (set-process-buffer process nil)))

(defun qwen-companion-terminal-external--ended (process event)
  "Kill the buffer of the terminal PROCESS which has ended with EVENT.
Keep it when the program has failed, so that its output is readable."
  (when-let* (((not (process-live-p process)))
              (buffer (process-buffer process))
              ((buffer-live-p buffer)))
    (if (eql 0 (process-exit-status process))
        (kill-buffer buffer)
      (message "The terminal of %s: %s" (buffer-name buffer) (string-trim event)))))

(provide 'qwen-companion-terminal-external)
;;; qwen-companion-terminal-external.el ends here
