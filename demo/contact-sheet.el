;;; contact-sheet.el --- Pictures of reviews in all states  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Loaded by demo/contact_sheet.py after scripts/checkout.el: brings reviews
;; into states that can be looked at, and takes a picture of each.  In a
;; graphical frame Emacs draws it; in a text terminal tmux tells what is
;; there, and a graphical Emacs draws that by `contact-sheet-draw'.

;;; Code:

(require 'cl-lib)
(require 'qwen-companion)

(declare-function x-export-frames "ext:xfns.c" (&optional frames type))
(defvar qwen-companion-review-unified--hunks)

(defconst contact-sheet--patience 30
  "Seconds to wait for anything.")

(defun contact-sheet--wait (predicate)
  "Wait until PREDICATE, a function, returns non-nil."
  (with-timeout (contact-sheet--patience (error "Waited in vain: %S" predicate))
    (while (not (funcall predicate))
      (accept-process-output nil 0.05))))

(defconst contact-sheet--changes
  '(("    greeting = \"hello\"\n" . "    greeting = \"good day\"\n")
    ("    return greeting\n" . "    name = name.strip()\n    return f\"{greeting}, {name}\"\n")
    ("    def leave(self):\n        pass\n" . "")
    ("print(Guest().polite(\"you\"))\n" . "if __name__ == \"__main__\":\n    print(Guest().polite(\"you\"))\n"))
  "What is proposed: alist of old and new lines.")

(defconst contact-sheet--old
  "class Guest:
    \"\"\"Somebody who is greeted.\"\"\"

    def polite(self, name):
        greeting = \"hello\"
        # What is said to all.
        self.said = greeting
        self.count = 1
        return greeting

    def enter(self):
        self.inside = True
        self.count += 1
        self.door.open()
        self.door.close()

    def leave(self):
        pass

    def wave(self):
        return None


def main():
    pass


print(Guest().polite(\"you\"))
"
  "The text of the file.")

(defun contact-sheet--propose (id file)
  "Propose a change of FILE with the identity ID, a string."
  (unless (file-exists-p file)
    (with-temp-file file
      (insert contact-sheet--old)))
  (let ((text contact-sheet--old))
    (pcase-dolist (`(,old . ,new) contact-sheet--changes)
      (setq text (string-replace old new text)))
    (qwen-companion-proposal-on-open
     (list :id id :session "1" :client "Qwen Code 0.24.4"
           :path (expand-file-name file) :text text))))

(defun contact-sheet--in-hunks (&rest keys)
  "Show the first proposal hunk by hunk, press KEYS there."
  (setq qwen-companion-diff-style 'unified)
  (let ((proposal (car (qwen-companion-proposals))))
    (setf (qwen-companion-proposal-style proposal) 'unified)
    (qwen-companion-diff-open proposal)
    (contact-sheet--wait (lambda () (with-current-buffer (window-buffer)
                                      qwen-companion-review-unified--hunks)))
    (set-buffer (window-buffer))
    (dolist (key keys)
      (execute-kbd-macro (kbd key)))))

(defconst contact-sheet--states
  `(("hunks" . ,(lambda () (contact-sheet--in-hunks)))
    ("dropped" . ,(lambda () (contact-sheet--in-hunks "n" "k")
                    (execute-kbd-macro "u")
                    (search-forward "\n-")
                    (execute-kbd-macro "k")))
    ("warnings" . ,(lambda ()
                     (let ((proposal (car (qwen-companion-proposals))))
                       (contact-sheet--in-hunks)
                       (setf (qwen-companion-proposal-lossy proposal) t
                             (qwen-companion-proposal-note proposal) "changed since"
                             (qwen-companion-proposal-warning proposal)
                             "runs at the next commit"))))
    ("keys" . ,(lambda () (contact-sheet--in-hunks "?")))
    ("ediff" . ,(lambda ()
                  (let ((proposal (car (qwen-companion-proposals))))
                    (setf (qwen-companion-proposal-style proposal) 'ediff)
                    (qwen-companion-diff-open proposal))))
    ("list" . ,(lambda ()
                 (setq qwen-companion-diff-style 'unified)
                 (setf (qwen-companion-proposal-warning (car (qwen-companion-proposals)))
                       "runs at the next commit")
                 (qwen-companion-diffs)
                 (execute-kbd-macro (kbd "m m SPC")))))
  "States to look at: (NAME . FUNCTION).")

(defun contact-sheet--size (columns lines)
  "Give the selected frame COLUMNS and LINES, or these many pixels."
  (when (display-graphic-p)
    (let ((frame-resize-pixelwise t))
      (set-frame-position nil 0 0)
      (set-frame-size nil columns lines t))
    (sit-for 0.3)))

(defun contact-sheet--take (file)
  "Take a picture of the selected frame, and write it to FILE."
  (message nil)
  (redisplay t)
  (if (display-graphic-p)
      (let ((coding-system-for-write 'binary))
        (write-region (x-export-frames nil 'png) nil (concat file ".png") nil 'silent))
    (call-process-shell-command
     (format "tmux -S %s capture-pane -e -p -t %s > %s.ansi"
             (car (split-string (getenv "TMUX") ",")) (getenv "TMUX_PANE")
             (shell-quote-argument file)))))

(defun contact-sheet-run (directory name sizes)
  "Write a picture of each state to DIRECTORY, its file beginning with NAME.
SIZES is a list of (WIDTH . HEIGHT), in pixels; a text terminal has one.
Emacs exits after that."
  (condition-case err
      (let ((inhibit-message t))
        (dolist (mode '(menu-bar-mode tool-bar-mode scroll-bar-mode blink-cursor-mode))
          (when (fboundp mode)
            (funcall mode -1)))
        (setq ring-bell-function #'ignore
              qwen-companion-diff-arrival 'command)
        (qwen-companion-mode 1)
        (contact-sheet--wait (lambda () (eq 'ready (qwen-companion-state))))
        (pcase-dolist (`(,width . ,height) sizes)
          (contact-sheet--size width height)
          (pcase-dolist (`(,state . ,function) contact-sheet--states)
            (contact-sheet--propose (concat state "1") "guest.py")
            (contact-sheet--propose (concat state "2") "other.py")
            (switch-to-buffer (find-file-noselect "guest.py"))
            (delete-other-windows)
            (with-demoted-errors "contact sheet: %S"
              (funcall function))
            ;; The words of changes are compared after they are shown.
            (redisplay t)
            (sit-for 0.5)
            (contact-sheet--take (expand-file-name
                                  (format "%s-%dx%d-%s" name width height state) directory))
            (mapc #'qwen-companion-diff-reject (qwen-companion-proposals))
            (qwen-companion-list-close 'qwen-companion-diffs-mode)))
        (kill-emacs 0))
    (error (write-region (format "%S\n" err) nil (expand-file-name "errors" directory) t)
           (kill-emacs 1))))

(defun contact-sheet--colour (number)
  "Return the name of colour NUMBER of the 256 of a terminal."
  (cond ((< number 16)
         (nth number '("#000000" "#cd0000" "#00cd00" "#cdcd00" "#0000ee" "#cd00cd" "#00cdcd"
                       "#e5e5e5" "#7f7f7f" "#ff0000" "#00ff00" "#ffff00" "#5c5cff" "#ff00ff"
                       "#00ffff" "#ffffff")))
        ((< number 232)
         (cl-flet ((part (value) (if (= value 0) 0 (+ 55 (* 40 value)))))
           (let ((cube (- number 16)))
             (format "#%02x%02x%02x" (part (/ cube 36)) (part (% (/ cube 6) 6))
                     (part (% cube 6))))))
        (t (let ((grey (+ 8 (* 10 (- number 232)))))
             (format "#%02x%02x%02x" grey grey grey)))))

(defun contact-sheet--apply (codes face)
  "Return FACE, a property list, after CODES, numbers that set attributes."
  (while codes
    (pcase (pop codes)
      (0 (setq face nil))
      (1 (setq face (plist-put face :weight 'bold)))
      (3 (setq face (plist-put face :slant 'italic)))
      (4 (setq face (plist-put face :underline t)))
      (7 (setq face (plist-put face :inverse-video t)))
      (9 (setq face (plist-put face :strike-through t)))
      ((and code (or 38 48) (guard (eql 5 (car codes))))
       (setq face (plist-put face (if (= code 38) :foreground :background)
                             (contact-sheet--colour (nth 1 codes)))
             codes (nthcdr 2 codes)))
      (39 (setq face (plist-put face :foreground "#000000")))
      (49 (setq face (plist-put face :background "#ffffff")))
      ((and code (guard (<= 30 code 37)))
       (setq face (plist-put face :foreground (contact-sheet--colour (- code 30)))))
      ((and code (guard (<= 40 code 47)))
       (setq face (plist-put face :background (contact-sheet--colour (- code 40)))))
      ((and code (guard (<= 90 code 97)))
       (setq face (plist-put face :foreground (contact-sheet--colour (- code 82)))))
      ((and code (guard (<= 100 code 107)))
       (setq face (plist-put face :background (contact-sheet--colour (- code 92)))))))
  face)

(defun contact-sheet--apply-escapes ()
  "Show the text of this buffer as its escape sequences say, and remove these."
  (let ((start (point-min)) face)
    (goto-char start)
    (while (re-search-forward "\e\\[\\([0-9;]*\\)m\\|[\C-n\C-o]" nil t)
      (let ((codes (and (match-string 1)
                        (save-match-data
                          (mapcar #'string-to-number
                                  (split-string (match-string 1) ";"))))))
        (replace-match "")
        (put-text-property start (point) 'face (copy-sequence face))
        (setq start (point)
              face (contact-sheet--apply codes (copy-sequence face)))))
    (put-text-property start (point-max) 'face face)
    ;; A terminal shows nothing of the end of a line.
    (goto-char (point-min))
    (while (search-forward "\n" nil t)
      (remove-text-properties (1- (point)) (point) '(face)))))

(defun contact-sheet-draw (files)
  "Draw each of FILES, what a text terminal has shown, as a picture beside it."
  (menu-bar-mode -1)
  (tool-bar-mode -1)
  (when (fboundp 'scroll-bar-mode)
    (scroll-bar-mode -1))
  ;; What Emacs takes a terminal for that does not say.
  (set-face-attribute 'default nil :background "#ffffff" :foreground "#000000")
  (dolist (file files)
    (switch-to-buffer (generate-new-buffer "terminal"))
    (insert-file-contents file)
    (contact-sheet--apply-escapes)
    (setq mode-line-format nil
          cursor-type nil
          truncate-lines t)
    (goto-char (point-min))
    (set-frame-size nil 122 (1+ (count-lines (point-min) (point-max))))
    (sit-for 0.2)
    (contact-sheet--take (file-name-sans-extension file)))
  (kill-emacs 0))

(provide 'contact-sheet)
;;; contact-sheet.el ends here
