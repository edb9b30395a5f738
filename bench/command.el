;;; command.el --- What the mode costs per command  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `make bench'.  Runs Emacs's own command loop, by a keyboard macro of
;; `forward-char', with the mode off, with it on and a session connected, and
;; with the hooks of claude-code-ide.el in place of it when the environment
;; variable PEERS names a directory with a checkout of it.  Counted is the
;; time of the processor, in turns; the command loop is in all of them.

;;; Code:

(require 'measure)
(require 'qwen-companion)

(defvar claude-code-ide-mcp--sessions)
(declare-function make-claude-code-ide-mcp-session "ext:claude-code-ide-mcp" (&rest arguments))

(defconst command-bench-commands 20000
  "How many commands a round has.")

(defconst command-bench--peer-hooks
  '(claude-code-ide-mcp--track-selection claude-code-ide-mcp--track-active-buffer)
  "What claude-code-ide.el puts on `post-command-hook'.")

(defun command-bench--us ()
  "Return the microseconds that a command takes in the current buffer."
  (goto-char (point-min))
  (/ (measure-cpu-ms
      (lambda () (execute-kbd-macro (kbd "C-f") command-bench-commands)))
     (/ command-bench-commands 1000.0)))

(defun command-bench--wait (predicate)
  "Let Emacs do its work until PREDICATE returns non-nil."
  (with-timeout (60 (error "Waited in vain"))
    (while (not (funcall predicate))
      (read-event nil nil 0.01))))

(defun command-bench--ours ()
  "Return the microseconds of a command while the mode is on."
  (qwen-companion-mode 1)
  (command-bench--wait (lambda () (eq 'ready (qwen-companion-state))))
  (command-bench--wait #'qwen-companion-roots-published)
  (setf (qwen-companion-backend--server-sessions qwen-companion-backend--server)
        '((:id "bench")))
  (qwen-companion-follow-update)
  (command-bench--wait (lambda () qwen-companion-follow--link))
  (prog1 (command-bench--us)
    (qwen-companion-mode -1)))

(defun command-bench--peer ()
  "Return the microseconds of a command with the peer's hooks."
  (dolist (hook command-bench--peer-hooks)
    (add-hook 'post-command-hook hook))
  (puthash default-directory
           (make-claude-code-ide-mcp-session :project-dir default-directory :client 'none)
           claude-code-ide-mcp--sessions)
  (prog1 (command-bench--us)
    (dolist (hook command-bench--peer-hooks)
      (remove-hook 'post-command-hook hook))
    (clrhash claude-code-ide-mcp--sessions)
    (cancel-function-timers 'claude-code-ide-mcp--send-selection-for-project)))

(defun command-bench-main ()
  "Measure and print."
  (let* ((home (file-name-as-directory (file-truename (make-temp-file "command-bench-" t))))
         (process-environment (append (list (concat "HOME=" home) (concat "TMPDIR=" home)
                                            "QWEN_HOME")
                                      process-environment))
         (temporary-file-directory home)
         (default-directory home)
         (peers (getenv "PEERS"))
         (peer (and peers (not (string-empty-p peers))
                    (expand-file-name "claude-code-ide.el" peers)))
         (peer (and peer (file-directory-p peer) peer))
         (inhibit-message t)
         rounds)
    (when peer
      (add-to-list 'load-path peer)
      ;; Nothing is sent.
      (provide 'websocket)
      (require 'claude-code-ide-mcp)
      ;; As users have it.
      (mapatoms (lambda (symbol)
                  (when (and (fboundp symbol)
                             (string-prefix-p "claude-code-ide-" (symbol-name symbol)))
                    (byte-compile symbol)))))
    (make-directory ".git")
    (write-region (mapconcat (lambda (number) (format "line %d of a text\n" number))
                             (number-sequence 1 (/ command-bench-commands 10)) "")
                  nil "a.txt" nil 0)
    (unwind-protect
        (with-current-buffer (find-file "a.txt")
          (command-bench--us)
          (dotimes (_ measure-rounds)
            (push (list (command-bench--ours)
                        (if peer (command-bench--peer) 0)
                        (command-bench--us))
                  rounds))
          (pcase-let ((`(,ours ,theirs ,bare) (measure-medians rounds)))
            (measure-row
             "a command: with the mode on and a session, beside bare Emacs"
             (format "%.2f us beside %.2f us, %.2f times" ours bare (measure-ratio rounds))
             "1.0")
            (when peer
              (measure-row
               "the same with the hooks of claude-code-ide.el"
               (format "%.2f us beside %.2f us" theirs bare) "-"))))
      (qwen-companion-mode -1)
      (delete-directory home t))))

(command-bench-main)

;;; command.el ends here
