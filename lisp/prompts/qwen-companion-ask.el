;;; qwen-companion-ask.el --- Prompts for a CLI from anywhere  -*- lexical-binding: t; -*-

;; Copyright (C) 2026 The qwen-companion authors

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; `qwen-companion-ask' opens a prompt for a CLI from anywhere, with the code
;; at point quoted in it: the region, an error, a hunk, marked files.  `C-c
;; C-c' sends it to the CLI; its terminal is neither selected nor scrolled.  An
;; unsent prompt is kept in its buffer, or in the history.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'qwen-companion-backend)
(require 'qwen-companion-buffers)
(require 'qwen-companion-completion)
(require 'qwen-companion-drafts)
(require 'qwen-companion-header)
(require 'qwen-companion-layer)
(require 'qwen-companion-messages)
(require 'qwen-companion-programs)
(require 'qwen-companion-prompt-completion)
(require 'qwen-companion-prompts)
(require 'qwen-companion-quote)
(require 'qwen-companion-registry)
(require 'qwen-companion-rescue)
(require 'qwen-companion-roots)
(require 'qwen-companion-terminal)
(require 'qwen-companion-untrusted)

(declare-function dired-get-marked-files "dired"
                  (&optional localp arg filter distinguish-one-marked error))
(declare-function diff-bounds-of-hunk "diff-mode" ())
(declare-function magit-current-section "ext:magit-section" ())
(declare-function markdown-mode "ext:markdown-mode" ())
(declare-function slot-value "eieio" (object slot))

;;; What is at point

(defconst qwen-companion-ask--output-limit 8000
  "Most characters of a compilation, a hunk or a section of Magit that are quoted.")

(defun qwen-companion-ask--quotation (root)
  "Return the code, error or region at point as text for a prompt.
Name files relative to ROOT.  Return nil if there is nothing to quote."
  (cond
   ((use-region-p)
    (qwen-companion-quote-region (region-beginning) (region-end) root))
   ((derived-mode-p 'dired-mode)
    (mapconcat (lambda (file)
                 (concat "@" (qwen-companion-quote-escape
                              (qwen-companion-quote-relative-name file root))))
               (dired-get-marked-files) " "))
   ((derived-mode-p 'diff-mode)
    (qwen-companion-ask--quote-hunk))
   ((derived-mode-p 'magit-section-mode)
    (qwen-companion-ask--quote-section root))
   ;; This includes a shell with `compilation-shell-minor-mode'.
   ((get-text-property (point) 'compilation-message)
    (qwen-companion-ask--quote-error))
   ((derived-mode-p 'compilation-mode)
    (qwen-companion-ask--quote-output "compilation"))
   ((derived-mode-p 'ert-results-mode)
    (qwen-companion-ask--quote-output "test run"))
   ((buffer-file-name (buffer-base-buffer))
    (or (qwen-companion-quote-problems
         (line-beginning-position) (line-end-position) root)
        (format "%s, line %d%s" (qwen-companion-quote-title root)
                (line-number-at-pos nil t)
                (let ((name (ignore-errors (add-log-current-defun))))
                  (if name (format ", in %s" name) "")))))))

(defun qwen-companion-ask--quote-hunk ()
  "Return the hunk at point in `diff-mode', or its beginning, as a code block."
  (pcase-let ((`(,start ,end) (ignore-errors (diff-bounds-of-hunk))))
    (when start
      (qwen-companion-quote-code-block
       "This change" start (min end (+ start qwen-companion-ask--output-limit))))))

(defun qwen-companion-ask--quote-section (root)
  "Return the section at point in a buffer of Magit.
Mention a file by its name relative to ROOT; quote the text of any other
section."
  (when-let* ((section (magit-current-section)))
    ;; The compiler knows no slots of a class that is not loaded.
    (cl-flet* ((slot (name section) (slot-value section name))
               (file (section)
                 (qwen-companion-quote-escape
                  (qwen-companion-quote-relative-name (slot 'value section) root))))
      (let ((start (slot 'start section))
            (end (min (slot 'end section)
                      (+ (slot 'start section) qwen-companion-ask--output-limit))))
        (pcase (slot 'type section)
          ('file (concat "@" (file section)))
          ('hunk (qwen-companion-quote-code-block
                  (format "This change of %s" (file (slot 'parent section))) start end))
          (_ (qwen-companion-quote-code-block "This part of Magit" start end)))))))

(defun qwen-companion-ask--quote-error ()
  "Return the message at point in a compilation, with the lines up to the next."
  (let ((start (line-beginning-position))
        (limit (min (point-max) (+ (point) 2000))))
    (qwen-companion-quote-code-block
     "This message" start
     (save-excursion
       (goto-char (line-end-position))
       (or (text-property-not-all (point) limit 'compilation-message nil)
           limit)))))

(defun qwen-companion-ask--quote-output (name)
  "Return the text of this buffer, or its end if it is long.
NAME is a noun for it."
  (let ((start (save-excursion
                 (goto-char (max (point-min)
                                 (- (point-max) qwen-companion-ask--output-limit)))
                 (if (bolp) (point) (line-beginning-position 2)))))
    (qwen-companion-quote-code-block
     (format (if (= start (point-min)) "This %s" "The end of this %s") name)
     start (point-max))))

;;; The prompt buffer

(defvar-local qwen-companion-ask--root nil
  "Directory of the project of the prompt in this buffer.")

(defvar-local qwen-companion-ask--cli nil
  "Id of the CLI for which the prompt in this buffer was begun, nil for any.")

(defun qwen-companion-ask--text ()
  "Return the text of the current prompt buffer."
  (buffer-substring-no-properties (point-min) (point-max)))

(defun qwen-companion-ask--remember (text)
  "Save TEXT, a prompt of this buffer, in the history."
  (qwen-companion-prompts-remember qwen-companion-ask--root (string-trim text)))

(defun qwen-companion-ask--save-draft ()
  "Save the text of the current prompt buffer, and other edits, in the history."
  (qwen-companion-prompts-set-edit nil)
  (qwen-companion-prompts-save-edits #'qwen-companion-ask--remember)
  (qwen-companion-ask--remember (qwen-companion-ask--text)))

(defun qwen-companion-ask--forget-buffer ()
  "Save the prompt of the current buffer, which is being killed, in the history."
  (qwen-companion-ask--save-draft)
  (qwen-companion-ask--release-exit))

(defun qwen-companion-ask--release-exit ()
  "Remove the exit hook if the current buffer was the last prompt."
  (unless (seq-some (lambda (buffer)
                      (and (not (eq buffer (current-buffer)))
                           (buffer-local-value 'qwen-companion-ask-mode buffer)))
                    (buffer-list))
    (remove-hook 'kill-emacs-hook #'qwen-companion-ask--save-drafts)))

(defun qwen-companion-ask--save-drafts ()
  "Save the texts of all prompt buffers in the history, as Emacs is exiting."
  (dolist (buffer (buffer-list))
    (when (buffer-local-value 'qwen-companion-ask--root buffer)
      (with-current-buffer buffer
        (qwen-companion-ask--save-draft)))))

(qwen-companion-header-define-keys qwen-companion-ask-mode nil
  ("C-c C-c" qwen-companion-ask-submit nil "send")
  ("C-c C-k" qwen-companion-ask-put-aside nil "put aside")
  ("M-p" qwen-companion-ask-previous nil "history" :other qwen-companion-ask-next)
  ("M-n" qwen-companion-ask-next nil)
  ("C-c C-b" qwen-companion-ask-take-back nil "take back"))

(define-minor-mode qwen-companion-ask-mode
  "Minor mode of a buffer with a prompt for a CLI.
`@' and any part of a name complete the files of the project.  `/' at the
beginning completes the slash commands of Qwen Code.

\\{qwen-companion-ask-mode-map}"
  :interactive nil
  (cond
   (qwen-companion-ask-mode
    (setq header-line-format
          '((:eval (qwen-companion-header-line
                    "Prompt"
                    `(,@(qwen-companion-header-mode-keys 'qwen-companion-ask-mode)
                      (20 . "@ / complete files, commands"))))))
    (add-hook 'completion-at-point-functions #'qwen-companion-ask--complete nil t)
    (add-hook 'completion-at-point-functions #'qwen-companion-ask--complete-command nil t)
    (add-hook 'kill-buffer-hook #'qwen-companion-ask--forget-buffer nil t)
    (add-hook 'kill-emacs-hook #'qwen-companion-ask--save-drafts))
   (t
    (setq header-line-format nil)
    (remove-hook 'completion-at-point-functions #'qwen-companion-ask--complete t)
    (remove-hook 'completion-at-point-functions #'qwen-companion-ask--complete-command t)
    (remove-hook 'kill-buffer-hook #'qwen-companion-ask--forget-buffer t)
    (qwen-companion-ask--release-exit))))

(defun qwen-companion-ask--buffer (root)
  "Return the prompt buffer for ROOT; create it if there is none."
  (let ((name (format "*qwen prompt: %s*"
                      (file-name-nondirectory (directory-file-name root)))))
    (or (seq-find (lambda (buffer)
                    (equal root (buffer-local-value 'qwen-companion-ask--root buffer)))
                  (buffer-list))
        (with-current-buffer (generate-new-buffer name)
          (setq default-directory (file-name-as-directory root))
          (if (fboundp 'markdown-mode) (markdown-mode) (text-mode))
          (setq qwen-companion-ask--root root)
          (when (file-remote-p root)
            (qwen-companion-prompt-completion-remote-files (file-name-as-directory root)))
          (qwen-companion-ask-mode 1)
          (qwen-companion-drafts-keep 'prompt root)
          (current-buffer)))))

(defun qwen-companion-ask--current-root ()
  "Return the root of the project of the current buffer, or its directory."
  (directory-file-name
   (expand-file-name (or (qwen-companion-roots-of default-directory)
                         default-directory))))

;;;###autoload
(defun qwen-companion-ask (&optional bare)
  "Write a prompt for a CLI about the code, error or region at point.
Quote the region if it is active, else the marked files, the hunk, the
section of Magit, the message of a compilation or the problems at point;
else name the line.  In a compilation but not on a message, and in the
results of ERT, quote the whole buffer, or its end.

With a prefix argument BARE, quote nothing.  If a prompt was begun before,
continue it.  \\<qwen-companion-ask-mode-map>\\[qwen-companion-ask-submit]
sends it, \\[qwen-companion-ask-put-aside] puts it aside."
  (interactive "P")
  (let* ((root (qwen-companion-ask--current-root))
         (quotation (and (not bare) (qwen-companion-ask--quotation root))))
    (deactivate-mark)
    (qwen-companion-ask--show root)
    (setq qwen-companion-ask--cli nil)
    (when quotation
      (qwen-companion-ask--insert quotation))))

(defun qwen-companion-ask-cli (session)
  "Write a prompt for the CLI of SESSION, a session or a registered CLI.
Signal a `user-error' if the CLI accepts none."
  (when-let* (((not (qwen-companion-terminal-session-buffer session)))
              (cli (qwen-companion-registry-of session))
              (refusal (qwen-companion-registry-refusal cli)))
    (user-error "%s" refusal))
  (qwen-companion-ask--show
   (directory-file-name (or (qwen-companion-session-directory session)
                            (user-error "The directory of this CLI is unknown"))))
  (setq qwen-companion-ask--cli (qwen-companion-session-id session)))

(defconst qwen-companion-ask--action
  '((display-buffer-reuse-window display-buffer-below-selected) (window-height . 12))
  "The `display-buffer' action for a prompt buffer.")

(defun qwen-companion-ask--show (root)
  "Select the prompt buffer for ROOT."
  (pop-to-buffer (qwen-companion-ask--buffer root) qwen-companion-ask--action)
  (goto-char (point-max)))

(defun qwen-companion-ask--insert (text)
  "Insert TEXT on lines of its own at the end of the prompt in this buffer."
  (goto-char (point-max))
  (unless (bolp)
    (insert "\n"))
  (insert text)
  (unless (bolp)
    (insert "\n")))

(defvar qwen-companion-ask--minibuffer-history nil
  "The history of the project whose prompt is read in the minibuffer.")

;;;###autoload
(defun qwen-companion-ask-send (prompt)
  "Send PROMPT to a CLI, with the code, error or region at point quoted above.
See `qwen-companion-ask' for the choice of the quotation."
  (interactive
   (let ((root (qwen-companion-ask--current-root)))
     (qwen-companion-ask--sessions root)
     (list (read-string "Ask: " nil
                        (progn
                          (setq qwen-companion-ask--minibuffer-history
                                (qwen-companion-prompts-of root))
                          'qwen-companion-ask--minibuffer-history)))))
  (when (string-blank-p prompt)
    (user-error "The prompt is empty"))
  (let ((root (qwen-companion-ask--current-root)))
    ;; Last, even for a prompt that is not sent: the quotation is needed
    ;; without it.
    (unwind-protect
        (qwen-companion-ask--send-quoting root prompt)
      (qwen-companion-prompts-remember root prompt))))

(defun qwen-companion-ask--send-quoting (root prompt)
  "Send PROMPT about ROOT to a CLI, with the code at point quoted above."
  (let ((quotation (qwen-companion-ask--quotation root)))
    (message "%s"
             (qwen-companion-prompts-send
              (qwen-companion-ask--choose root) root
              (if quotation
                  (concat (string-trim-right quotation) "\n" prompt)
                prompt)))))

;;; Sending

(defun qwen-companion-ask--candidates (root)
  "Return the CLIs to which a prompt about ROOT can be sent.
They run on ROOT's machine, in terminals of this Emacs, or are registered."
  (seq-filter
   (lambda (session)
     (if (qwen-companion-terminal-session-buffer session)
         ;; On another machine, the names in a prompt would mean other files.
         (let ((place (qwen-companion-session-place session)))
           (or (equal (file-remote-p root) place)
               (and place (qwen-companion-places-shared-path root place))))
       (when-let* (((not (file-remote-p root)))
                   (cli (qwen-companion-registry-of session)))
         (not (qwen-companion-registry-refusal cli)))))
   (qwen-companion-registry-sessions)))

(defun qwen-companion-ask-possible-p ()
  "Return non-nil if there is a CLI to which a prompt can be sent from here."
  (qwen-companion-ask--candidates (qwen-companion-ask--current-root)))

(defun qwen-companion-ask--sessions (root)
  "Return the CLIs to which a prompt about ROOT can be sent.
Signal a `user-error' if there are none."
  (or (qwen-companion-ask--candidates root)
      (user-error
       (if (qwen-companion-backend-sessions)
           "No CLI of this place is in a terminal of this Emacs; M-x qwen-companion-run starts one"
         "No CLI is connected; M-x qwen-companion-run starts one"))))

(defun qwen-companion-ask--choose (root)
  "Return the CLI for a prompt about ROOT; ask if there are several.
Prefer CLIs that work in ROOT, and among these one in a terminal of this
Emacs.  If the prompt was begun for a certain CLI, return that."
  (or (qwen-companion-ask--target)
      (let* ((sessions (qwen-companion-ask--sessions root))
             (inside (seq-filter (lambda (session)
                                   (when-let* ((directory (qwen-companion-session-directory session))
                                               (place (or (qwen-companion-session-place session) "")))
                                     (qwen-companion-untrusted-in-directory-p
                                      directory
                                      (if-let* ((path (qwen-companion-places-shared-path root place)))
                                          (concat place path)
                                        root))))
                                 sessions))
             (candidates (or (seq-filter #'qwen-companion-terminal-session-buffer inside)
                             inside
                             (seq-filter #'qwen-companion-terminal-session-buffer sessions)
                             sessions)))
        (if (cdr candidates)
            (qwen-companion-ask--read candidates)
          (car candidates)))))

(defun qwen-companion-ask--target ()
  "Return the CLI for which the prompt of this buffer was begun, or nil.
Signal a `user-error' if it has ended."
  (when qwen-companion-ask--cli
    (or (qwen-companion-registry-find qwen-companion-ask--cli)
        (progn
          (setq qwen-companion-ask--cli nil)
          (user-error "The CLI for this prompt has ended; send it again to choose another")))))

(defun qwen-companion-ask--read (sessions)
  "Return the one of SESSIONS that the user chooses, by its terminal or its name."
  (let* ((table (mapcar (lambda (session)
                          (let ((buffer (qwen-companion-terminal-session-buffer session))
                                (cli (qwen-companion-registry-of session)))
                            (cons (cond (buffer (buffer-name buffer))
                                        (cli (format "%s, process %d"
                                                     (qwen-companion-registry-name cli)
                                                     (qwen-companion-registered-pid cli)))
                                        (t (qwen-companion-layer-name session)))
                                  session)))
                        sessions))
         (now (float-time)))
    (qwen-companion-completion-read
     "Send to: " table (if (seq-every-p #'get-buffer (mapcar #'car table))
                           'buffer
                         'qwen-companion-session)
     (lambda (session) (qwen-companion-layer-describe session now)))))

(defun qwen-companion-ask--require ()
  "Signal a `user-error' outside of a prompt buffer."
  (unless qwen-companion-ask-mode
    (user-error "Not in a prompt buffer; M-x qwen-companion-ask opens one")))

(defcustom qwen-companion-ask-clis '(("gemini" "gemini"))
  "Other CLIs that can be started when a prompt is sent to several.
Each is (NAME PROGRAM ARGUMENT...), offered by NAME if PROGRAM is found."
  :group 'qwen-companion
  :type '(alist :key-type (string :tag "Name")
                :value-type (repeat :tag "Program and arguments" string)))

(defun qwen-companion-ask-submit (&optional several)
  "Send the prompt of this buffer to a CLI, and close its window.
With a prefix argument SEVERAL, choose several CLIs and start each with
the prompt in a new worktree; `qwen-companion-worktrees' lists them."
  (interactive "P" qwen-companion-ask-mode)
  (qwen-companion-ask--require)
  (let ((prompt (string-trim (qwen-companion-ask--text)))
        (root qwen-companion-ask--root))
    (when (string-empty-p prompt)
      (user-error "The prompt is empty"))
    (let ((done (if several
                    (qwen-companion-ask--start-several root prompt)
                  (qwen-companion-prompts-send
                   (qwen-companion-ask--choose root) root prompt))))
      (qwen-companion-prompts-set-edit nil)
      (qwen-companion-prompts-save-edits #'qwen-companion-ask--remember)
      (setq qwen-companion-ask--cli nil)
      (erase-buffer)
      (set-buffer-modified-p nil)
      (qwen-companion-drafts-forget)
      (quit-window)
      (message "%s" done))))

(defun qwen-companion-ask--start-several (root prompt)
  "Start CLIs with PROMPT, each in a new worktree of ROOT's repository.
Return a message about it."
  (unless (eq 'ready (qwen-companion-state))
    (user-error "The companion is not running; M-x qwen-companion-mode starts it"))
  (when (file-remote-p root)
    (user-error "Several CLIs can only be started on this machine; M-x qwen-companion-run-in-worktree starts one there"))
  (let* ((clis (qwen-companion-ask--read-clis))
         (count (length clis))
         (name (qwen-companion-ask--worktree-name prompt)))
    (qwen-companion-prompts-remember root prompt)
    (format
     "Starting in %d worktree%s%s; M-x qwen-companion-worktrees lists them"
     count (if (= count 1) "" "s")
     (qwen-companion-terminal-in-worktrees
      root
      (mapcar (lambda (number) (format "%s-%d" name number)) (number-sequence 1 count))
      (lambda (tree)
        (pcase-let ((`(,command . ,arguments) (pop clis)))
          (when command
            (push (cons tree command) qwen-companion-terminal-clis))
          (qwen-companion-prompts-start tree arguments prompt)))))))

(defun qwen-companion-ask--read-clis ()
  "Read CLIs and return each as (COMMAND . ARGUMENTS).
COMMAND is nil for Qwen Code."
  (let* ((clis (cons '("qwen")
                     (seq-filter (lambda (cli) (qwen-companion-programs-find (cadr cli)))
                                 qwen-companion-ask-clis)))
         (models (delq nil (mapcar (lambda (session)
                                     (qwen-companion-cli-state-model
                                      (qwen-companion-session-state session)))
                                   (qwen-companion-backend-sessions)))))
    (mapcar
     (lambda (choice)
       (let* ((name (car (split-string choice ":")))
              (model (substring choice (min (length choice) (1+ (length name)))))
              (cli (or (assoc name clis)
                       (user-error "No CLI is called %s; there are %s" name
                                   (mapconcat #'car clis ", ")))))
         (unless (cdr cli)
           (qwen-companion-terminal-program))
         (cons (cdr cli)
               (unless (string-empty-p model) (list "--model" model)))))
     (or (completing-read-multiple
          "CLIs, one for each new worktree (as qwen, qwen:MODEL): "
          (append (mapcar #'car clis)
                  (mapcar (lambda (model) (concat "qwen:" model)) (delete-dups models))))
         (user-error "No CLI chosen; the prompt is not sent")))))

(defun qwen-companion-ask--worktree-name (prompt)
  "Return a prefix of names for worktrees made for PROMPT."
  (let ((words (split-string (downcase prompt) "[^a-z0-9]+" t)))
    (concat (truncate-string-to-width (string-join (seq-take words 4) "-") 24)
            (format-time-string "-%m%d-%H%M%S"))))

;;;###autoload
(defun qwen-companion-ask-take-back ()
  "Take back a prompt that is queued until the turn of a CLI ends.
Put it into the prompt buffer of its project, to be edited or sent again.
If several are queued, choose one; they are listed in their order."
  (interactive)
  (let* ((waiting (or (qwen-companion-prompts-waiting)
                      (user-error "No prompt is queued")))
         (choices (cl-loop for (buffer root text) in waiting
                           for number from 1
                           collect (list (format "%d %s" number
                                                 (truncate-string-to-width
                                                  (string-join (split-string text) " ")
                                                  80 nil nil t))
                                         buffer root text)))
         (choice (if (cdr choices)
                     (qwen-companion-completion-read
                      "Take back: " choices 'qwen-companion-prompt
                      (lambda (waiting) (buffer-name (car waiting))))
                   (cdar choices))))
    (pcase-let ((`(,buffer ,root ,text) choice))
      (unless (qwen-companion-prompts-take-back buffer text)
        (user-error "That prompt has just been sent"))
      (qwen-companion-ask--show root)
      (qwen-companion-ask--insert text))))

(defun qwen-companion-ask-put-back (root text select)
  "Put TEXT back into the prompt buffer for ROOT, above any draft.
Show the buffer, and with SELECT non-nil select its window."
  (let ((buffer (qwen-companion-ask--buffer root)))
    (with-current-buffer buffer
      (save-excursion
        (goto-char (point-min))
        (insert text)
        (unless (or (bolp) (eobp))
          (insert "\n"))))
    (if select
        (qwen-companion-ask--show root)
      (display-buffer buffer '(nil (inhibit-same-window . t))))))

(defun qwen-companion-ask--return (root text cli)
  "Put TEXT back into the prompt buffer for ROOT, to be sent to CLI again.
CLI is the id of the CLI that did not get it.  If it is nil, TEXT has
arrived late after all: remove it from the buffer.  Keep any other text
there.  Return a sentence about this for the echo area."
  (let ((buffer (qwen-companion-ask--buffer root)))
    (with-current-buffer buffer
      (cond ((and (not cli) (equal text (qwen-companion-ask--text)))
             (erase-buffer)
             (setq qwen-companion-ask--cli nil)
             "; it is no longer in the prompt buffer")
            ((not cli) "")
            ((not (string-blank-p (qwen-companion-ask--text)))
             (qwen-companion-header-text
              ".  \\<qwen-companion-ask-mode-map>\\[qwen-companion-ask-previous] in %s has the prompt"
              (buffer-name)))
            (t
             (erase-buffer)
             (insert text)
             (setq qwen-companion-ask--cli cli)
             (unless (or (active-minibuffer-window) (get-buffer-window buffer t))
               (display-buffer buffer qwen-companion-ask--action))
             (qwen-companion-header-text
              ".  It is in %s: \\<qwen-companion-ask-mode-map>\\[qwen-companion-ask-submit] sends it again"
              (buffer-name)))))))

(setq qwen-companion-registry-return-function #'qwen-companion-ask--return)

(defun qwen-companion-ask-put-aside ()
  "Close the window of this prompt, to continue it later.
\\[qwen-companion-ask] opens it again."
  (interactive nil qwen-companion-ask-mode)
  (qwen-companion-ask--require)
  (quit-window))

(defun qwen-companion-ask-previous (&optional count)
  "Show the COUNTth previous prompt of the project."
  (interactive "p" qwen-companion-ask-mode)
  (qwen-companion-ask--require)
  (insert (prog1 (qwen-companion-prompts-previous
                  (qwen-companion-prompts-of qwen-companion-ask--root)
                  (or count 1) (qwen-companion-ask--text))
            (erase-buffer))))

(defun qwen-companion-ask-next (&optional count)
  "Show the COUNTth next prompt of the project, at last the unsent one."
  (interactive "p" qwen-companion-ask-mode)
  (qwen-companion-ask-previous (- (or count 1))))

;;; Drafts of killed Emacs processes

;;;###autoload
(defun qwen-companion-recover-drafts ()
  "Restore texts that you were writing when an Emacs was killed.
Put prompts, plans and comments into the prompt buffers of their projects.
Put an edited proposal into a buffer with keys to write it into its file,
and edited lines of a proposal into a separate buffer."
  (interactive)
  (let ((drafts (or (qwen-companion-drafts-orphaned)
                    (user-error "No texts of a killed Emacs to restore"))))
    (pcase-dolist (`(,file ,kind . ,path) drafts)
      (let ((text (qwen-companion-drafts-text file)))
        (if (eq kind 'prompt)
            (qwen-companion-ask-put-back (expand-file-name path) text nil)
          (with-current-buffer (generate-new-buffer
                                (format "*qwen-companion lines: %s*" (file-name-nondirectory path)))
            (insert text)
            (goto-char (point-min))
            (qwen-companion-untrusted-set-major-mode path)
            (if (eq kind 'file)
                (qwen-companion-rescue-adopt
                 (current-buffer)
                 (make-qwen-companion-rescue
                  :path path :name (file-name-nondirectory path) :line-end "\n"
                  :reason "Emacs was killed before you had decided"))
              (qwen-companion-drafts-keep kind path))
            (display-buffer (current-buffer))))))
    ;; Each text is auto-saved elsewhere before its file is deleted.
    (do-auto-save t)
    (mapc #'delete-file (mapcar #'car drafts))
    (message "Restored: %s"
             (mapconcat (pcase-lambda (`(,_ ,kind . ,path))
                          (format "%s %s"
                                  (pcase kind
                                    ('prompt "a prompt for")
                                    ('file "your text of")
                                    (_ "lines of"))
                                  (qwen-companion-untrusted-path path)))
                        drafts ", "))))

;;; Completion

(defconst qwen-companion-ask--commands-age 30
  "Seconds for which the list of slash commands is reused.")

(defvar-local qwen-companion-ask--commands nil
  "The slash commands as last read: (TIME . COMMANDS).")

(defun qwen-companion-ask--complete ()
  "Complete the file after `@' before point, for `completion-at-point-functions'."
  (qwen-companion-prompt-completion-file qwen-companion-ask--root (point-min)))

(defun qwen-companion-ask--complete-command ()
  "Complete the slash command at the beginning of the prompt.
For `completion-at-point-functions'."
  (when-let* ((start (save-excursion
                       (skip-chars-backward "^/ \t\n")
                       (and (eq ?/ (char-before))
                            (let ((start (point)))
                              (backward-char)
                              (skip-chars-backward " \t\n")
                              (and (bobp) start))))))
    (list start (save-excursion (skip-chars-forward "^/ \t\n") (point))
          (lambda (string predicate action)
            (if (eq action 'metadata)
                '(metadata (category . qwen-companion-slash-command))
              (complete-with-action action (qwen-companion-ask--commands)
                                    string predicate)))
          :annotation-function
          (lambda (name)
            (when-let* ((about (cdr (assoc name (qwen-companion-ask--commands)))))
              (concat "  " about)))
          :exclusive 'no)))

(defun qwen-companion-ask--commands ()
  "Return the slash commands, each as (NAME . DESCRIPTION)."
  (unless (and qwen-companion-ask--commands
               (< (- (float-time) (car qwen-companion-ask--commands))
                  qwen-companion-ask--commands-age))
    (setq qwen-companion-ask--commands
          (cons (float-time) (qwen-companion-prompt-completion-commands qwen-companion-ask--root))))
  (cdr qwen-companion-ask--commands))

(provide 'qwen-companion-ask)
;;; qwen-companion-ask.el ends here
