;;; qwen-companion-layer.el --- The settings layer of the CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Terminals in this Emacs get a file of settings below the user's own, by a
;; variable of the environment (python/qwen_companion/doors/layers.py).  It
;; makes a CLI ask before each edit in modes that do not ask, and report its
;; activity.  This file has the options for that, describes the activity, and
;; reads the choice of a CLI with these descriptions.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-messages)
(require 'qwen-companion-options)
(require 'qwen-companion-places)
(require 'qwen-companion-untrusted)

(defconst qwen-companion-layer--unreviewed-modes '("auto-edit" "yolo")
  "Approval modes in which a CLI writes files without review.")

(defun qwen-companion-layer-on-file-visited (payload)
  "Return non-nil when a buffer visits the file in PAYLOAD."
  (let ((path (qwen-companion-file-visited-path payload)))
    (and (not (qwen-companion-places-remote-p path))
         (qwen-companion-buffers-visiting path)
         t)))

(defvar qwen-companion-layer--guarded t
  "Whether a CLI asks before an edit while the Python process does not answer.")

(defun qwen-companion-layer-on-published (payload)
  "Note from PAYLOAD of the `published' message how CLIs ask before edits."
  (setq qwen-companion-layer--guarded (qwen-companion-published-guarded payload)))

(defun qwen-companion-layer--unreviewed (session)
  "Return, in a word or two, why edits of SESSION are not reviewed, or nil."
  (cond
   ((qwen-companion-session-no-hooks session) "no hooks")
   ((not (eq qwen-companion-review-edits 'all-modes))
    (car (member (qwen-companion-cli-state-mode (qwen-companion-session-state session))
                 qwen-companion-layer--unreviewed-modes)))))

(defun qwen-companion-layer-lighter ()
  "Return the mode line's text about CLIs with unreviewed edits, or nil.
Include their number if the edits of other CLIs are reviewed."
  (when-let* (((and qwen-companion-review-edits t))
              (sessions (qwen-companion-backend-sessions)))
    (let ((found (delq nil (mapcar #'qwen-companion-layer--unreviewed sessions))))
      (cond
       (found
        (propertize
         (concat " edits not reviewed: "
                 (string-join (delete-dups (copy-sequence found)) ", ")
                 (and (length< found (length sessions))
                      (format " (%d of %d)" (length found) (length sessions))))
         'face 'warning 'help-echo #'qwen-companion-layer--unreviewed-help))
       ((not qwen-companion-layer--guarded)
        (propertize " no curl" 'face 'warning
                    'help-echo "Without the program curl, a CLI makes edits unasked while Emacs does not answer"))))))

(defun qwen-companion-layer--unreviewed-help (&rest _)
  "Return which CLIs write files without a review and why, for `help-echo'."
  (mapconcat
   (lambda (session)
     (format "%s writes files without a review: %s"
             (qwen-companion-layer-name session)
             (if-let* ((reason (qwen-companion-session-no-hooks session)))
                 (concat "it calls no hooks, " (qwen-companion-untrusted-text reason))
               (concat "it works in mode " (qwen-companion-layer--unreviewed session)))))
   (seq-filter #'qwen-companion-layer--unreviewed (qwen-companion-backend-sessions))
   "\n"))

(defun qwen-companion-layer-activity ()
  "Return the most urgent state of the CLIs, a symbol or nil.
It is `asking' if one asks in its terminal, else `failed' if the turn of
one has failed, else `working' if one works."
  (let ((activities (mapcar (lambda (session)
                              (qwen-companion-cli-state-activity
                               (qwen-companion-session-state session)))
                            (qwen-companion-backend-sessions))))
    (seq-find (lambda (activity) (memq activity activities)) '(asking failed working))))

(defun qwen-companion-layer-describe (session now)
  "Return one line about the CLI of SESSION, at the time NOW, or nil.
Sanitise texts of the CLI."
  (let* ((state (qwen-companion-session-state session))
         (since (qwen-companion-cli-state-since state))
         (parts
          (list (pcase (qwen-companion-cli-state-activity state)
                  ('working "working")
                  ('asking "asking")
                  ('idle "idle")
                  ('cancelled "cancelled")
                  ('failed (qwen-companion-layer-failure session)))
                (and since (qwen-companion-cli-state-activity state)
                     (format "for %s"
                             (qwen-companion-layer-duration
                              (- now (/ since 1000.0))))))))
    (when (or state (qwen-companion-session-no-hooks session))
      (string-join
       (delq nil
             (list (and (car parts) (string-join (delq nil parts) " "))
                   (qwen-companion-layer--quote (qwen-companion-cli-state-question state))
                   (qwen-companion-layer--quote (qwen-companion-cli-state-prompt state))
                   (when-let* ((done (qwen-companion-layer-todo-count session)))
                     (concat done " to-dos done"))
                   (when-let* ((mode (qwen-companion-cli-state-mode state)))
                     (concat "mode " (qwen-companion-untrusted-text mode)))
                   (when-let* ((model (qwen-companion-cli-state-model state)))
                     (concat "model " (qwen-companion-untrusted-text model)))
                   (when-let* ((context (qwen-companion-cli-state-context state)))
                     (format "%d%% of the context used" context))
                   (when-let* ((tokens (qwen-companion-cli-state-tokens state)))
                     (format "%d tokens" tokens))
                   (let ((agents (or (qwen-companion-cli-state-subagents state) 0)))
                     (and (> agents 0)
                          (format (ngettext "%d subagent" "%d subagents" agents) agents)))
                   (when-let* ((reason (qwen-companion-session-no-hooks session)))
                     (concat "calls no hooks: "
                             (qwen-companion-untrusted-text reason)))))
       ", "))))

(defun qwen-companion-layer-failure (session)
  "Return a text about the failure of SESSION's last turn, or nil."
  (let ((state (qwen-companion-session-state session)))
    (and (eq 'failed (qwen-companion-cli-state-activity state))
         (format "failed: %s" (qwen-companion-untrusted-line
                              (or (qwen-companion-cli-state-failure state)
                                  "unknown error"))))))

(defun qwen-companion-layer-todo-count (session)
  "Return the number of done and of all to-dos of SESSION, as \"3/7\", or nil."
  (when-let* ((todos (qwen-companion-cli-state-todos (qwen-companion-session-state session))))
    (format "%d/%d" (cl-count 'done todos :key #'qwen-companion-todo-status) (length todos))))

(defun qwen-companion-layer--todo-lines (session)
  "Return the to-dos of SESSION, each on a line that begins with its status."
  (mapcar (lambda (todo)
            (format "  %s %s"
                    (pcase (qwen-companion-todo-status todo)
                      ('done "[x]") ('working "[-]") (_ "[ ]"))
                    (qwen-companion-untrusted-text (qwen-companion-todo-text todo))))
          (qwen-companion-cli-state-todos (qwen-companion-session-state session))))

(defun qwen-companion-layer--quote (text)
  "Return TEXT, by a user or a CLI, sanitised, cut and in quotes; nil if nil."
  (and text (format "\"%s\"" (qwen-companion-untrusted-text
                              (qwen-companion-untrusted-cut text)))))

(defun qwen-companion-layer-duration (seconds)
  "Return SECONDS as text, like \"5 min\"."
  (let ((seconds (max 0 (floor seconds))))
    (cond ((< seconds 60) (format "%d s" seconds))
          ((< seconds 3600) (format "%d min" (/ seconds 60)))
          ((< seconds 86400) (format "%d h" (/ seconds 3600)))
          (t (format "%d d" (/ seconds 86400))))))

(defun qwen-companion-layer-tokens (usage)
  "Return the number of tokens in USAGE, a list."
  (cl-loop for each in usage
           sum (+ (qwen-companion-usage-input each) (qwen-companion-usage-output each))))

(defun qwen-companion-layer-number (number)
  "Return NUMBER, of tokens, as short text, like \"12k\"."
  (cond ((< number 1000) (number-to-string number))
        ((< number 999500) (format "%.3gk" (/ number 1000.0)))
        (t (format "%.3gM" (/ number 1000000.0)))))

(defun qwen-companion-layer-usage (usage)
  "Return USAGE, a list, in words by model; nil if it is nil."
  (and usage
       (mapconcat
        (lambda (model)
          (cl-loop for each in usage
                   when (equal model (qwen-companion-usage-model each))
                   sum (qwen-companion-usage-input each) into input
                   and sum (qwen-companion-usage-cached each) into cached
                   and sum (qwen-companion-usage-output each) into output
                   finally return
                   (format "%s %s in%s, %s out"
                           (qwen-companion-untrusted-line model)
                           (qwen-companion-layer-number input)
                           (if (> cached 0)
                               (format " (%s cached)" (qwen-companion-layer-number cached))
                             "")
                           (qwen-companion-layer-number output))))
        (delete-dups (mapcar #'qwen-companion-usage-model usage)) "; ")))

(defun qwen-companion-layer--waiting-since (session)
  "Return the time since which SESSION waits for the user, in ms since the epoch.
Return infinity if it does not wait."
  (let ((state (qwen-companion-session-state session)))
    (or (and (memq (qwen-companion-cli-state-activity state) '(asking failed))
             (qwen-companion-cli-state-since state))
        1.0e+INF)))

(defun qwen-companion-layer-lines (&optional todos)
  "Return a line about the activity of each connected CLI; nil without CLIs.
CLIs that wait for the user come first, the longest waiting at the top.
If TODOS is non-nil, put its to-dos below each line."
  (let ((now (float-time)))
    (when-let* ((lines
                 (cl-loop for session in (seq-sort-by #'qwen-companion-layer--waiting-since #'<
                                                              (qwen-companion-backend-sessions))
                          for text = (qwen-companion-layer-describe session now)
                          when text
                          collect (concat (qwen-companion-untrusted-text
                                           (qwen-companion-session-client session))
                                          ": " text)
                          and when todos
                          append (qwen-companion-layer--todo-lines session))))
      (string-join lines "\n"))))

(defun qwen-companion-layer-help (&rest _)
  "Return the activities and the to-dos of the CLIs, for `help-echo'."
  (qwen-companion-layer-lines t))

;;; Choosing a CLI

(defun qwen-companion-layer-name (session)
  "Return the name of SESSION in completion: its CLI and its process."
  (string-trim
   (format "%s %s"
           (qwen-companion-untrusted-line (or (qwen-companion-session-client session) "Qwen Code"))
           (or (qwen-companion-backend-process-text session) ""))))

(defun qwen-companion-layer-read-session (prompt sessions)
  "Return the one of SESSIONS that the user chooses, asking with PROMPT."
  (let ((names (mapcar (lambda (session)
                         (cons (qwen-companion-layer-name session) session))
                       sessions))
        (now (float-time)))
    (qwen-companion-completion-read
     prompt names 'qwen-companion-session
     (lambda (session) (qwen-companion-layer-describe session now)))))

(provide 'qwen-companion-layer)
;;; qwen-companion-layer.el ends here
