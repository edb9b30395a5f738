;;; qwen-companion-kept-plans.el --- Approved plans of CLIs  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The Python process keeps each approved plan.  This file shows them, saves
;; them as files of the project, and sends them to another CLI.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-header)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-prompts)
(require 'qwen-companion-registry)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

;;; Requests

(defun qwen-companion-kept-plans-request (directory conversation callback)
  "Call CALLBACK soon with the plans approved in DIRECTORY, newest first.
With CONVERSATION non-nil, the plans are those of that conversation,
whatever its directory.  Signal a `user-error' if no request is possible."
  (unless (eq 'ready (qwen-companion-state))
    (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
  (qwen-companion-backend-request
   'list-plans (list :directory (file-truename directory) :conversation conversation)
   (lambda (reply)
     (when reply
       ;; The callback may ask, which a handler of a message must not.
       (run-at-time 0 nil callback (qwen-companion-kept-plans-plans reply))))))

;;; Reading a plan

(defun qwen-companion-kept-plans-insert (path)
  "Insert the plan in the file PATH at point, as untrusted text."
  (let ((coding-system-for-read 'utf-8-unix)
        (file-name-handler-alist nil)
        (format-alist nil)
        (after-insert-file-functions nil))
    (insert-file-contents path)))

(defvar-local qwen-companion-kept-plans--directory nil
  "The project of the plan in the current buffer.")

(qwen-companion-header-define-keys qwen-companion-kept-plan-mode nil
  ("w" qwen-companion-plan-save nil "save as a file")
  ("s" qwen-companion-plan-send nil "send to a CLI")
  ("l" qwen-companion-plan-choose nil "others")
  ("q" quit-window nil))

(define-minor-mode qwen-companion-kept-plan-mode
  "Minor mode of an approved plan.

\\{qwen-companion-kept-plan-mode-map}"
  :interactive nil
  :lighter nil
  (setq-local word-wrap qwen-companion-kept-plan-mode)
  (setq buffer-read-only qwen-companion-kept-plan-mode))

(defun qwen-companion-kept-plans--time (plan)
  "Return the time of approval of PLAN, as text."
  (format-time-string "%F %R" (/ (qwen-companion-kept-plan-time plan) 1000)))

(defun qwen-companion-kept-plans-show (plan directory)
  "Show PLAN of the project DIRECTORY in another window."
  (let ((buffer (get-buffer-create "*qwen-companion plan*"))
        (path (qwen-companion-kept-plan-path plan)))
    (with-current-buffer buffer
      (let ((inhibit-read-only t))
        (erase-buffer)
        (qwen-companion-kept-plans-insert path)
        (qwen-companion-untrusted-set-major-mode path))
      (setq default-directory (file-name-as-directory directory)
            qwen-companion-kept-plans--directory directory
            header-line-format
            `((:eval (qwen-companion-header-line
                      ,(format "Approved %s" (qwen-companion-kept-plans--time plan))
                      (qwen-companion-header-mode-keys 'qwen-companion-kept-plan-mode)))))
      (set-buffer-modified-p nil)
      (goto-char (point-min))
      (qwen-companion-kept-plan-mode))
    (pop-to-buffer buffer)))

;;;###autoload
(defun qwen-companion-plan (&optional choose)
  "Show the last plan approved in the terminal or chat of this buffer.
In other buffers, and with a prefix argument CHOOSE, choose one of those
of the project if there are several."
  (interactive "P")
  (let ((directory (qwen-companion-terminal-here))
        (conversation (and (not choose)
                           (run-hook-with-args-until-success
                            'qwen-companion-kept-plans-conversation-functions)))
        (input num-nonmacro-input-events))
    (qwen-companion-kept-plans-request
     directory conversation
     (lambda (plans)
       (cond
        ((and (null plans) conversation)
         (message "No plan was approved in this conversation; %s shows those of the project"
                  (substitute-command-keys "C-u \\[qwen-companion-plan]")))
        ((null plans)
         (message "No plan was approved in %s" (abbreviate-file-name directory)))
        ((or (active-minibuffer-window) (/= input num-nonmacro-input-events))
         (message "Not shown, as you typed meanwhile; repeat M-x qwen-companion-plan"))
        (t (qwen-companion-kept-plans-show
            (if (or conversation (null (cdr plans)))
                (car plans)
              (qwen-companion-kept-plans--read plans))
            directory)))))))

(defvar qwen-companion-kept-plans-conversation-functions
  '(qwen-companion-terminal-conversation-here)
  "Abnormal hook to find the conversation of the current buffer.
Each function returns its id, or nil if it knows none.")

(defun qwen-companion-kept-plans--read (plans)
  "Read and return one of PLANS."
  (let ((number 0))
    (or (qwen-companion-completion-read
         "Plan (default the newest): "
         (mapcar (lambda (plan)
                   (cons (format "%d %s" (cl-incf number)
                                 (qwen-companion-untrusted-line
                                  (qwen-companion-kept-plan-title plan)))
                         plan))
                 plans)
         'qwen-companion-plan #'qwen-companion-kept-plans--time)
        (car plans))))

(defun qwen-companion-plan-choose ()
  "Choose another plan of the project of this one."
  (interactive nil qwen-companion-kept-plan-mode)
  (qwen-companion-plan t))

(defun qwen-companion-plan-save (file)
  "Save the plan of this buffer as FILE, by default in its project, and visit it."
  (interactive
   (progn
     (qwen-companion-buffers-require-mode 'qwen-companion-kept-plan-mode)
     (list (read-file-name "Save the plan as: "
                           (file-name-as-directory qwen-companion-kept-plans--directory)
                           nil nil "PLAN.md")))
   qwen-companion-kept-plan-mode)
  (let ((coding-system-for-write 'utf-8-unix))
    (write-region (point-min) (point-max) file nil nil nil t))
  (find-file-other-window file))

(defun qwen-companion-plan-send (session)
  "Send the plan of this buffer to SESSION, a CLI that you choose."
  (interactive
   (progn
     (qwen-companion-buffers-require-mode 'qwen-companion-kept-plan-mode)
     (list (qwen-companion-layer-read-session
            "Send the plan to: "
            (or (qwen-companion-registry-sessions) (user-error "No CLI is running")))))
   qwen-companion-kept-plan-mode)
  (message "%s" (qwen-companion-prompts-send
                 session qwen-companion-kept-plans--directory
                 (concat "Follow this plan:\n\n"
                         (buffer-substring-no-properties (point-min) (point-max))))))

(provide 'qwen-companion-kept-plans)
;;; qwen-companion-kept-plans.el ends here
